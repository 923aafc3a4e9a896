"""Sending a request again that was refused only since the service was too busy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import requests

LOG = logging.getLogger(__name__)

#: How often a request is sent again at most, and how many seconds all pauses before that take at most.
MOST_REPEATS = 5
MOST_SECONDS = 60.0

_TOO_MANY_REQUESTS = 429
_UNAVAILABLE = 503


def send_patiently(
    send: Callable[[], requests.Response], is_known_again: Callable[[], bool], sleep: Callable[[float], None]
) -> requests.Response:
    """Send a request, and again if the answer is 429 or 503 with ``Retry-After``; return the answer or last refusal.

    A request that changes something is sent again only if that cannot change it twice: if it was surely not
    carried out, or has a key by which the server knows it again; ``is_known_again`` says whether it has.
    The pauses grow, and are no shorter than the service asks for.
    """
    left = MOST_SECONDS
    for repeat in range(MOST_REPEATS):
        response = send()
        seconds = _retry_after(response)
        if seconds is None or not (_is_safe_to_repeat(response) or is_known_again()):
            return response
        pause = max(seconds, 2.0**repeat)
        if pause > left:
            return response
        left -= pause
        LOG.warning("The reservation service is busy; trying again in %.0f s.", pause)
        sleep(pause)
    return send()


def _retry_after(response: requests.Response) -> float | None:
    """Return after how many seconds a refused request may be sent again; None if the answer says nothing."""
    if response.status_code not in {_TOO_MANY_REQUESTS, _UNAVAILABLE}:
        return None
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() else None


def _is_safe_to_repeat(response: requests.Response) -> bool:
    if response.status_code == _TOO_MANY_REQUESTS or "OpenStack-API-Version" in response.headers:
        return True  # the service itself sends Retry-After only with what it has not begun
    request = response.request
    if request is None:
        return False
    query = parse_qs(urlsplit(request.url or "").query)
    return request.method in {"GET", "HEAD"} or query.get("dry_run", [""])[-1].lower() == "true"
