"""The history of a lease comes in pages, as lists do."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.rig import Api

RENAMED = 120


@pytest.fixture(scope="module")
def lease(shared_api: Api) -> dict[str, Any]:
    """A lease that was changed often."""
    api = shared_api.using(version="1.2")
    made = api.book(start=1)
    for index in range(RENAMED):
        assert api.put(f"/v1/leases/{made['id']}", {"name": f"lease-{index}"}).status_code == 200
    assert isinstance(made, dict)
    return made


def follow(api: Api, path: str) -> list[dict[str, Any]]:
    """Return all pages from this page on."""
    found = []
    while path:
        page = api.get(path).json
        found.append(page)
        [link] = page.get("history_links") or [{"href": ""}]
        split = urlsplit(link["href"])
        path = f"{split.path}?{split.query}" if link["href"] else ""
    return found


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_a_history_comes_in_pages_of_a_hundred(shared_api: Api, lease: dict[str, Any], version: str) -> None:
    pages = follow(shared_api.using(version=version), f"/v1/leases/{lease['id']}/history")
    assert [len(page["history"]) for page in pages] == [100, RENAMED + 1 - 100]
    entries = [entry for page in pages for entry in page["history"]]
    assert [entry["action"] for entry in entries] == ["create"] + ["update"] * RENAMED
    assert sorted(entries, key=lambda entry: entry["at"]) == entries


def test_pages_have_the_requested_size_and_meet_seamlessly(shared_api: Api, lease: dict[str, Any]) -> None:
    api, path = shared_api.using(version="1.2"), f"/v1/leases/{lease['id']}/history"
    whole = api.get(f"{path}?limit=1000").json
    assert "history_links" not in whole
    pages = follow(api, f"{path}?limit=50")
    assert [len(page["history"]) for page in pages] == [50, 50, RENAMED + 1 - 100]
    assert [entry for page in pages for entry in page["history"]] == whole["history"]
    third = whole["history"][2]
    assert api.get(f"{path}?limit=1&marker={third['id']}").json["history"] == [whole["history"][3]]


def test_a_marker_of_another_history_is_refused(shared_api: Api, lease: dict[str, Any]) -> None:
    api = shared_api.using(version="1.2")
    other = api.book(start=3)
    [entry] = api.get(f"/v1/leases/{other['id']}/history").json["history"]
    for marker in (entry["id"], "0", "x", "-1", "9" * 30):
        result = api.get(f"/v1/leases/{lease['id']}/history?marker={marker}")
        assert (result.status_code, result.json["field"]) == (400, "marker"), result.text
