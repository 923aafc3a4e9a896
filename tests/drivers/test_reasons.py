"""The reasons that owners of leases read after errors of a cloud."""

from __future__ import annotations

import json

import pytest

from tenure.domain.reason import Reason
from tenure.drivers.cloud import TypeDrivers
from tenure.drivers.contract import CloudError, CloudRefused, Command, Progress, ResourceOccupied
from tenure.drivers.openstack.requests import Owner, Request, refusal
from tenure.drivers.router import Router
from tenure.drivers.type_driver import TypeDriver
from tenure.testing.rig import command_of

OURS = Request("compute", "POST", "/servers")
OF_OWNER = Request("compute", "POST", "/servers", owner=Owner("trust"))
BODY = '{"conflictingRequest": {"message": "host compute-7 has server 77"}}'


@pytest.mark.parametrize("status", [400, 403, 404, 409, 500])
def test_errors_of_our_own_requests_are_shown_to_operators_only(status: int):
    error = refusal(OURS, status, BODY)
    assert str(error) == f"Nova: host compute-7 has server 77 (HTTP {status})"
    assert error.reason.text == f"Nova answers with HTTP {status}."


def test_the_text_of_an_error_has_no_character_that_cannot_be_stored_or_shown():
    error = refusal(OURS, 409, '{"conflictingRequest": {"message": "a\\u0000b\\ud800c\\u001b[2Jd"}}')
    assert str(error) == "Nova: a?b?c?[2Jd (HTTP 409)"


@pytest.mark.parametrize(("status", "is_shown"), [(403, True), (409, True), (500, False)])
def test_errors_of_requests_as_the_owner_are_shown_except_server_errors(status: int, is_shown: bool):
    assert ("compute-7" in refusal(OF_OWNER, status, BODY).reason.text) is is_shown


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CloudRefused("host compute-7"), "Region south: The cloud refuses the request."),
        (CloudRefused(Reason("No.", "host compute-7")), "Region south: No."),
        (ResourceOccupied({"7": "host compute-7"}), "Region south: Resources of the lease are still used by others."),
    ],
    ids=repr,
)
def test_the_owner_reads_the_region_and_operators_the_whole_error(error: CloudError, text: str):
    class Failing(TypeDriver):
        def ensure_started(self, command: Command) -> Progress:
            raise error

        ensure_ended = ensure_started

    router = Router({"south": TypeDrivers({"physical:host": Failing()})})
    with pytest.raises(type(error)) as raised:
        router.ensure_started(command_of(resource_type="physical:host"))
    assert raised.value.reason.text == text
    assert "host compute-7" in str(raised.value)
    assert str(raised.value).startswith("Region south: ")


def test_what_nova_quotes_of_a_secret_request_is_shown_to_nobody():
    """As in its own refusals of fields, https://opendev.org/openstack/nova, nova/api/validation/validators.py."""
    said = "Invalid input for field/attribute user_data. Value: #!/bin/sh PASSWORD=hunter2. It is no base64."
    request = Request("compute", "POST", "/servers", {}, token="of the owner", is_secret=True)
    reason = refusal(request, 400, json.dumps({"badRequest": {"message": said, "code": 400}})).reason
    assert reason.text == "Nova: Invalid input for field/attribute user_data. (HTTP 400)"
    assert "hunter2" not in str(reason.detail)
