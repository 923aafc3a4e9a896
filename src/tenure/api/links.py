"""The URLs of this API for clients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urlencode

import falcon

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+")


class Links:
    """Builds URLs from the configured public URL or, if there is none, from the URL of the request."""

    def __init__(self, public_url: str | None = None) -> None:
        self._public_url = public_url.rstrip("/") if public_url else None

    def base(self, req: falcon.Request) -> str:
        """Return the URL of the root, without a slash at its end."""
        if self._public_url:
            return self._public_url
        scheme = req.forwarded_scheme if req.forwarded_scheme in ("http", "https") else req.scheme
        host = req.forwarded_host if _HOST.fullmatch(req.forwarded_host) else req.netloc
        prefix = (req.get_header("X-Forwarded-Prefix") or "").rstrip("/")
        if not _PREFIX.fullmatch(prefix):
            prefix = ""
        return f"{scheme}://{host}{prefix}{quote(req.root_path)}"

    def next_page(self, req: falcon.Request, query: Mapping[str, str], marker: str) -> list[Mapping[str, str]]:
        """Return the link to the next page."""
        href = f"{self.base(req)}{quote(req.path)}?{urlencode({**query, 'marker': marker})}"
        return [{"rel": "next", "href": href}]
