"""The cloud's HTTP APIs, with nothing but the standard library: the testbed is set up by the machine's own Python."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.places import KEYSTONE, PASSWORD
from testbed.processes import TestbedError

REQUEST_SECONDS = 120


@dataclass(frozen=True)
class Answer:
    """What an API answered."""

    headers: Mapping[str, str]
    #: The document, for JSON; the bytes otherwise.
    body: Any


class Account:
    """One who has signed in, with the catalogue that Keystone gave him."""

    def __init__(self, user: str = "admin", project: str | None = None) -> None:
        domain = {"id": "default"}
        credentials = {"user": {"name": user, "domain": domain, "password": PASSWORD}}
        request = {
            "identity": {"methods": ["password"], "password": credentials},
            "scope": {"project": {"name": project or user, "domain": domain}},
        }
        self._token: str | None = None
        self._listed: dict[str, list[dict[str, Any]]] = {}
        answer = self.send("POST", f"{KEYSTONE}/v3/auth/tokens", {"auth": request})
        self._token = answer.headers["X-Subject-Token"]
        self.catalogue: dict[str, str] = {
            service["type"]: endpoint["url"]
            for service in answer.body["token"]["catalog"]
            for endpoint in service["endpoints"]
            if endpoint["interface"] == "public"
        }

    def send(self, method: str, url: str, body: object = None, *, content_type: str = "application/json") -> Answer:
        """Send a request. ``body`` is a document, or bytes to be sent as they are.

        Raises ``TestbedError`` for every status from 400 on and where nobody answers.
        """
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", "Content-Type": content_type}
        if self._token is not None:
            headers["X-Auth-Token"] = self._token
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as reply:
                text = reply.read()
                return Answer(reply.headers, json.loads(text) if text[:1] in {b"{", b"["} else text)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise TestbedError(f"{method} {url}: {error.code} {text}") from error
        except OSError as error:
            raise TestbedError(f"{method} {url}: {error}") from error

    def get(self, url: str) -> Any:
        """Return the document at ``url``."""
        return self.send("GET", url).body

    def find(self, url: str, kind: str, match: Mapping[str, object]) -> dict[str, Any] | None:
        """Return the thing of that kind which matches, or None. Things are listed once in the life of this object."""
        for thing in self._list(url, kind):
            if all(thing.get(name) == value for name, value in match.items()):
                return thing
        return None

    def ensure(self, url: str, kind: str, match: Mapping[str, object], /, **more: object) -> dict[str, Any]:
        """Return the thing of that kind which matches; where there is none, make it, with ``more``."""
        found = self.find(url, kind, match)
        if found is None:
            found = dict(self.send("POST", url, {kind: {**match, **more}}).body[kind])
            self._list(url, kind).append(found)
        return found

    def _list(self, url: str, kind: str) -> list[dict[str, Any]]:
        if url not in self._listed:
            self._listed[url] = self.get(url)[f"{kind}s"]
        return self._listed[url]
