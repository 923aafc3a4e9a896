"""Errors as the libraries of OpenStack show them: with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from keystoneauth1.exceptions.http import from_response
from openstack.exceptions import SDKException, raise_from_response

from tests.api.rig import HOSTS, Api, open_api

VERSIONS = pytest.mark.parametrize("version", ["1.1", "1.2", "1.3"])


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api


def refusals(api: Api, version: str) -> Iterator[tuple[str, requests.Response]]:
    """Yield the texts of refusals of several kinds, each with the answer as the libraries get it."""
    caller = api.using(version=version)
    answers: list[Any] = [
        caller.post("/v1/leases", caller.lease_body(reservations=[{**HOSTS, "min": 9, "max": 9}])),
        caller.post("/v1/leases", {}),
        caller.get("/v1/leases/none"),
        caller.get("/v1/os-hosts"),
        caller.get("/v1/nothing"),
        caller.using(user="nobody").get("/v1/leases"),
    ]
    for answer in answers:
        response = requests.Response()
        response.status_code = answer.status_code
        response._content = answer.content
        response.request = requests.Request("POST", "http://api/v1/leases").prepare()
        response.headers.update(answer.headers)
        yield answer.json["error_message"], response


@VERSIONS
def test_keystoneauth_shows_the_reason(api: Api, version: str):
    for text, response in refusals(api, version):
        assert text in str(from_response(response, "POST", "http://api/v1/leases"))


@VERSIONS
def test_openstacksdk_shows_the_reason(api: Api, version: str):
    for text, response in refusals(api, version):
        with pytest.raises(SDKException) as error:
            raise_from_response(response)
        assert text in str(error.value)
