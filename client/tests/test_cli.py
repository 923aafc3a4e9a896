"""The commands of ``tenure``, in this process against a server of API 1.1."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import yaml

from conftest import Run
from tenureclient.cli.reservation_options import NEEDED
from tenureclient.testing import FakeServer


def last_body(server: FakeServer) -> Any:
    return next(request.body for request in reversed(server.requests) if request.body is not None)


def last_body_or_none(server: FakeServer) -> Any:
    return next((request.body for request in reversed(server.requests) if request.body is not None), None)


def hosts_of(server: FakeServer, lease_id: str) -> list[str]:
    """Return the ids of the hosts that the lease has, or will have."""
    return [host.id for host in server.client().leases.hosts(lease_id) if host.status != "released"]


def test_a_lease_is_made_from_the_short_form(server: FakeServer, tenure: Run) -> None:
    for number in range(3):
        server.add_host(f"c{number}", properties={"gpu": "v100"})
    outcome = tenure(
        *("lease", "create", "bio", "--hosts", "1-2", "--with", "vcpus>=8", "--with", "gpu=v100"),
        *("--start", "tomorrow 09:00", "--for", "1d12h", "-f", "json"),
    )
    assert outcome.code == 0, outcome.errors
    lease = json.loads(outcome.output)
    assert (lease["name"], lease["status"]) == ("bio", "PENDING")
    assert (lease["start_date"], lease["end_date"]) == ("2027-03-02T08:00:00Z", "2027-03-03T20:00:00Z")
    assert lease["reservations"][0]["max"] == 2
    assert last_body(server)["reservations"] == [
        {
            "resource_type": "physical:host",
            "min": 1,
            "max": 2,
            "resource_properties": '["and", [">=", "$vcpus", "8"], ["==", "$gpu", "v100"]]',
        }
    ]


def test_a_lease_is_made_as_with_python_blazarclient(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    outcome = tenure(
        *("lease", "create", "--start-date", "2027-03-02 09:30", "--end-date", "2027-03-03 09:30"),
        *(
            "--before-end-date",
            "2027-03-03 09:00",
            "--event",
            "event_type=notify,event_date=2027-03-02 10:00",
        ),
        "--reservation",
        'resource_type=physical:host,min=1,max=1,resource_properties=,hypervisor_properties=[">=", "$vcpus", "2"]',
        *("bio", "-f", "json"),
    )
    assert outcome.code == 0, outcome.errors
    assert "--event has no effect" in outcome.errors
    assert last_body(server) == {
        "name": "bio",
        "start_date": "2027-03-02T09:30:00Z",
        "end_date": "2027-03-03T09:30:00Z",
        "before_end_date": "2027-03-03T09:00:00Z",
        "reservations": [
            {
                "resource_type": "physical:host",
                "min": 1,
                "max": 1,
                "hypervisor_properties": '[">=", "$vcpus", "2"]',
                "resource_properties": "",
            }
        ],
    }


def test_lease_starts_now_and_lasts_a_day_by_default(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    assert tenure("lease", "create", "bio", "--hosts", "1").code == 0
    assert (last_body(server)["start_date"], last_body(server)["end_date"]) == ("now", "2027-03-02T09:30:00Z")
    server.add_host("c2")
    assert tenure("lease", "create", "bio", "--hosts", "1", "--start", "+2h").code == 0
    assert last_body(server)["end_date"] == "2027-03-02T11:30:00Z"


def test_waiting_shows_how_far_it_is_on_stderr(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    outcome = tenure("lease", "create", "bio", "--hosts", "1", "--start", "+10m", "--wait", "-f", "json")
    assert outcome.code == 0
    assert json.loads(outcome.output)["status"] == "ACTIVE"
    assert outcome.errors.splitlines()[0] == "Lease bio: PENDING, starts in 10m (0s elapsed)"
    assert outcome.errors.splitlines()[-1] == "Lease bio: ACTIVE (10m elapsed)"


def test_a_wait_that_takes_too_long_fails(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    outcome = tenure("lease", "create", "bio", "--hosts", "1", "--start", "+2h", "--wait", "--wait-timeout", "1h")
    assert outcome.code == 1
    assert "within 1h" in outcome.errors


def test_a_shortfall_is_shown_by_its_stages(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1", vcpus=4)
    server.add_host("c2", vcpus=16)
    outcome = tenure("lease", "create", "bio", "--hosts", "2", "--with", "vcpus>=8", "--with", "colour=red")
    assert outcome.code == 1
    assert outcome.output == ""
    lines = [line.strip() for line in outcome.errors.splitlines()]
    assert lines[1:7] == [
        "field: reservations[0].min",
        "asked: 2 of physical:host (number 1)",
        "can be reserved at all               2",
        "of those, match the properties       0",
        "of those, free for the whole period  0",
        "no resource has the property: colour",
    ]
    assert lines[7].startswith("error: 409 NotEnoughResources, request: req-")


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        (400, "Denied", "No credits are left."),
        (403, "OverQuota", "Quota exceeded for leases: 2 of 2 used, 1 more requested."),
        (403, "Forbidden", "Lease duration of 7200 seconds must be less than or equal to 3600 seconds."),
        (503, "Unavailable", "The enforcement service does not answer; try again later."),
    ],
)
def test_refusal_by_the_site_is_one_line(server: FakeServer, tenure: Run, code: int, name: str, message: str) -> None:
    """A second line tells what to give to the operator."""
    server.add_host("c1")
    server.refuse_next(code, name, message, resource="leases", limit=2)
    outcome = tenure("lease", "create", "bio", "--hosts", "1")
    assert (outcome.code, outcome.output) == (1, "")
    said, known = outcome.errors.splitlines()
    assert said == message
    assert known.startswith(f"  error: {code} {name}, request: req-")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bio"], NEEDED),
        (["bio"], "--hosts, --instances, --floating-ips, --volumes, --server, --server-flavor"),
        (["bio", "--with", "a=1"], "--hosts"),
        (["bio", "--hosts", "1", "--with", "a"], "'a' is not a condition"),
        (["bio", "--hosts", "two"], "'two' is not a count"),
        (["bio", "--hosts", "1", "--start", "soonish"], "--start: 'soonish' is not a date"),
        (["bio", "--hosts", "1", "--start", "2027-03-28 02:30"], "does not exist"),
        (["bio", "--hosts", "1", "--for", "long"], "'long' is not a duration"),
        (["bio", "--hosts", "1", "--end", "now"], "--end"),
        (["bio", "--hosts", "1", "--end-date", "now"], "--end"),
        (["bio", "--hosts", "1", "--before-end", "now"], "--before-end"),
        (["bio", "--hosts", "1", "--for", "1d", "--end", "tomorrow"], "not allowed with"),
        (["bio", "--hosts", "1", "--for", "999999999d"], "too far away"),
        (["bio", "--reservation", "min=1"], "resource_type"),
        (["bio", "--hosts", "1", "--start", "tomorrow", "--end", "today 12:00"], "field: end_date"),
    ],
)
def test_mistakes_are_reported_with_the_option(tenure: Run, arguments: list[str], complaint: str) -> None:
    outcome = tenure("lease", "create", *arguments)
    assert outcome.code != 0
    assert complaint in outcome.errors


def test_dates_are_shown_on_local_clocks_and_written_in_utc(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1", "--start", "2027-07-01 12:00", "--for", "1d")
    assert "2027-07-01 12:00 CEST" in tenure("lease", "list").output
    assert "2027-07-01T10:00:00Z" in tenure("lease", "list", "-f", "csv").output
    assert yaml.safe_load(tenure("lease", "list", "-f", "yaml").output)[0]["name"] == "bio"
    assert tenure("lease", "list", "-f", "value", "-c", "start_date").output == "2027-07-01T10:00:00Z\n"


def test_leases_are_listed_by_filter_and_order(server: FakeServer, tenure: Run) -> None:
    for number in range(2):
        server.add_host(f"c{number}")
    tenure("lease", "create", "b", "--hosts", "1", "--start", "+2d", "--for", "1d")
    tenure("lease", "create", "a", "--hosts", "1", "--start", "+4d", "--for", "1d")

    def names(*arguments: str) -> list[str]:
        outcome = tenure("lease", "list", "-f", "value", "-c", "name", *arguments)
        assert outcome.code == 0, outcome.errors
        return outcome.output.split()

    assert names() == ["a", "b"]
    assert names("--sort-by", "start_date") == ["b", "a"]
    assert sorted(names("--sort-by", "id")) == ["a", "b"]
    assert names("--limit", "1") == ["a"]
    assert names("--starts-before", "+3d") == ["b"]
    assert names("--ends-after", "+4d") == ["a"]
    assert names("--ends-after", "now", "--status", "pending") == ["a", "b"]
    assert names("--name", "b") == ["b"]
    assert names("--project", "fake-project", "--user", "fake-user") == ["a", "b"]
    row = json.loads(tenure("lease", "list", "-f", "json").output)[0]
    assert list(row) == ["id", "name", "start_date", "end_date", "status"]
    assert tenure("lease", "list", "-f", "value", "-c", "degraded").output == "False\nFalse\n"
    assert json.loads(tenure("lease", "list", "--name", "none", "-c", "degraded", "-f", "json").output) == []


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["--name", "new"], {"name": "new"}),
        (["--prolong-for", "1h"], {"end_date": "2027-03-04T10:30:00Z"}),
        (["--prolong_for", "1h"], {"end_date": "2027-03-04T10:30:00Z"}),
        (["--reduce-by", "30m"], {"end_date": "2027-03-04T09:00:00Z"}),
        (["--defer-by", "1h"], {"start_date": "2027-03-03T10:30:00Z"}),
        (["--advance-by", "1h"], {"start_date": "2027-03-03T08:30:00Z"}),
        (["--end-date", "2027-03-05 10:00"], {"end_date": "2027-03-05T10:00:00Z"}),
        (["--end", "2027-03-05 10:00"], {"end_date": "2027-03-05T09:00:00Z"}),
        (["--start-date", "2027-03-03 10:00"], {"start_date": "2027-03-03T10:00:00Z"}),
        (["--start", "now"], {"start_date": "now", "end_date": "2027-03-02T09:30:00Z"}),
        (["--start", "now", "--for", "2h"], {"start_date": "now", "end_date": "2027-03-01T11:30:00Z"}),
        (["--before-end", "2027-03-04 08:00"], {"before_end_date": "2027-03-04T07:00:00Z"}),
    ],
)
def test_a_lease_is_changed(server: FakeServer, tenure: Run, arguments: list[str], body: object) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1", "--start", "+2d", "--for", "1d")
    outcome = tenure("lease", "set", "bio", *arguments)
    assert (outcome.code, outcome.output.splitlines()[0]) == (0, "Updated lease: bio")
    assert last_body(server) == body


def test_a_lease_is_prolonged(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1", "--start", "+2d", "--for", "1d")
    outcome = tenure("lease", "prolong", "bio", "--by", "30d")
    assert (outcome.code, outcome.output) == (0, "Prolonged lease: bio\n")
    assert last_body(server) == {"end_date": "2027-04-03T09:30:00Z"}
    assert tenure("lease", "prolong", "bio").code != 0


def test_a_lease_is_ended_early_and_waited_for(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1", "--wait")
    assert tenure("lease", "set", "bio", "--end", "now", "--wait").code == 0
    assert tenure("lease", "show", "bio", "-f", "value", "-c", "status").output == "TERMINATED\n"


def test_a_lease_is_started_early_and_waited_for(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1", "--start", "+2d")
    assert tenure("lease", "set", "bio", "--start", "now", "--wait").code == 0
    assert tenure("lease", "wait", "bio", "-f", "value", "-c", "status").output == "ACTIVE\n"


def test_a_reservation_is_changed(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1")
    (lease,) = server.leases.values()
    reservation = lease.reservations[0].id
    outcome = tenure("lease", "set", "bio", "--reservation", f"id={reservation},min=1,max=3", "--wait")
    assert outcome.code == 0
    assert last_body(server) == {"reservations": [{"id": reservation, "min": 1, "max": 3}]}
    assert tenure("lease", "set", "bio").code == 1


def test_a_lease_is_shown_for_people_and_for_programs(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1", properties={"gpu": "v100"})
    tenure("lease", "create", "bio", "--hosts", "1", "--with", "gpu=v100")
    shown = tenure("lease", "show", "bio").output
    assert 'resource_properties=["==", "$gpu", "v100"]' in shown
    assert "2027-03-01 10:30 CET start_lease DONE" in shown
    document = json.loads(tenure("lease", "show", "bio", "-f", "json").output)
    assert [event["event_type"] for event in document["events"]] == [
        "start_lease",
        "before_end_lease",
        "end_lease",
    ]
    assert document["reservations"][0]["min"] == 1


def test_the_history_and_the_hosts_of_a_lease(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1", "--wait")
    history = json.loads(tenure("lease", "history", "bio", "-f", "json").output)
    assert [(entry["action"], entry["to_status"]) for entry in history] == [
        ("create", "PENDING"),
        ("start", "STARTING"),
        ("started", "ACTIVE"),
    ]
    hosts = tenure("lease", "hosts", "bio", "-f", "value", "-c", "hypervisor_hostname", "-c", "status").output
    assert hosts == "c1 held\n"


def test_a_reservation_is_dropped(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1")
    (lease,) = server.leases.values()
    reservation = lease.reservations[0].id
    outcome = tenure("lease", "reservation", "drop", "bio", "other")
    assert outcome.code == 1
    assert reservation in outcome.errors
    assert tenure("lease", "reservation", "drop", "bio", reservation).output == f"Dropped reservation: {reservation}\n"
    assert server.leases[lease.id].reservations[0].status == "deleted"


def test_leases_are_deleted(server: FakeServer, tenure: Run) -> None:
    for number in range(2):
        server.add_host(f"c{number}")
    tenure("lease", "create", "a", "--hosts", "1")
    tenure("lease", "create", "b", "--hosts", "1")
    outcome = tenure("lease", "delete", "a", "b", "--wait")
    assert outcome.output == "Deleted lease: a\nDeleted lease: b\n"
    assert server.leases == {}
    assert tenure("lease", "delete", "a").code == 1


def test_a_host_is_closed_emptied_and_opened(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1", "--start", "+2h")
    [lease] = server.leases.values()
    server.add_host("c2")
    asked = tenure("host", "disable", "c1", "--reason", "a broken fan")
    assert asked.code == 1
    assert "c1 takes no new reservations; those that have a part in it keep it: 1." in asked.errors
    assert "Nothing was done. Say --yes" in asked.errors
    shown = tenure("host", "disable", "c1", "--dry-run", "-f", "value", "-c", "lease_id", "-c", "reason")
    assert shown.output == f"{lease.id} It keeps the resource.\n"
    assert server.hosts["1"].reservable
    assert tenure("host", "disable", "c1", "--reason", "a broken fan", "--yes").code == 0
    assert (server.hosts["1"].reservable, server.hosts["1"].disabled_reason) == (False, "a broken fan")
    host = json.loads(tenure("host", "show", "c1", "-f", "json").output)
    assert (host["enabled"], host["disabled_reason"], host["health"]) == (False, "a broken fan", "well")
    plan = tenure("host", "reallocate", "c1", "--dry-run", "-f", "value", "-c", "lease_id", "-c", "moves_to")
    assert plan.output == f"{lease.id} 2\n"
    assert hosts_of(server, lease.id) == ["1"]
    asked = tenure("host", "reallocate", "c1", "--lease", "bio")
    assert "Of 1 reservations on c1, 1 move to other hosts. Nothing was done." in asked.errors
    assert tenure("host", "reallocate", "c1", "--lease", "bio", "--yes").code == 0
    assert hosts_of(server, lease.id) == ["2"]
    assert tenure("host", "enable", "c1", "--yes", "-f", "value").output == ""
    assert server.hosts["1"].reservable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "done"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_user_at_a_terminal_is_asked(
    server: FakeServer, tenure: Run, monkeypatch: pytest.MonkeyPatch, typed: str, done: bool
) -> None:
    server.add_host("c1")
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    outcome = tenure("host", "disable", "c1")
    assert "c1 takes no new reservations; those that have a part in it keep it: 0. Do it? [y/N]" in outcome.errors
    assert (outcome.code == 0, not server.hosts["1"].reservable) == (done, done)
    assert ("Nothing was done." in outcome.errors) != done


def test_started_reservations_stay_unless_running_is_given(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1", "--wait")
    server.add_host("c2")
    [lease] = server.leases.values()
    assert "running" in tenure("host", "reallocate", "c1", "--yes", "-f", "value", "-c", "reason").output
    assert hosts_of(server, lease.id) == ["1"]
    assert "1 of them run, and lose their servers" in tenure("host", "reallocate", "c1", "--running").errors
    assert tenure("host", "reallocate", "c1", "--running", "--yes").code == 0
    assert hosts_of(server, lease.id) == ["2"]


def test_hosts(server: FakeServer, tenure: Run) -> None:
    server.add_hypervisor("c1")
    created = tenure("host", "create", "c1", "--extra", "gpu=v100", "--extra", "rack=r2", "-f", "json")
    assert json.loads(created.output)["properties"] == {"gpu": "v100", "rack": "r2"}
    server.add_host("b1", vcpus=2)
    assert tenure("host", "list", "-f", "value", "-c", "hypervisor_hostname").output == "b1\nc1\n"
    assert tenure("host", "list", "--sort-by", "id", "-f", "value", "-c", "id").output == "1\n2\n"
    assert tenure("host", "list", "--not-reservable", "-f", "value").output == ""
    assert list(json.loads(tenure("host", "list", "-f", "json").output)[0]) == [
        "id",
        "hypervisor_hostname",
        "vcpus",
        "memory_mb",
        "local_gb",
    ]
    assert tenure("host", "set", "c1", "--extra", "gpu=a100").output == "Updated host: c1\n"
    assert tenure("host", "unset", "c1", "--extra", "rack").output == "Updated host: c1\n"
    assert "gpu=a100" in tenure("host", "show", "c1").output
    assert server.hosts["1"].properties == {"gpu": "a100"}
    assert tenure("host", "set", "c1").code == 1
    assert tenure("host", "unset", "c1").code == 1
    assert tenure("host", "set", "c1", "--extra", "gpu").code == 2
    assert tenure("host", "delete", "c1", "b1").output == "Deleted host: c1\nDeleted host: b1\n"
    assert tenure("host", "show", "c1").code == 1


def test_host_properties(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1", properties={"gpu": "v100", "rack": "r2"})
    assert tenure("host", "property", "set", "rack", "--private").output == "Updated host property: rack\n"
    assert tenure("host", "property", "list", "-f", "value").output == "gpu\n"
    detailed = json.loads(
        tenure("host", "property", "list", "--all", "--detail", "--sort-by", "private", "-f", "json").output
    )
    assert detailed == [
        {"property": "gpu", "private": False, "property_values": ["v100"]},
        {"property": "rack", "private": True, "property_values": ["r2"]},
    ]
    assert json.loads(tenure("host", "property", "show", "rack", "-f", "json").output)["private"] is True
    tenure("host", "property", "set", "rack", "--public")
    assert tenure("host", "property", "list", "-f", "value").output == "gpu\nrack\n"


def test_allocations(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    tenure("lease", "create", "bio", "--hosts", "1")
    server.add_host("c2")
    (lease,) = server.leases.values()
    listed = json.loads(tenure("allocation", "list", "host", "--lease-id", lease.id, "-f", "json").output)
    assert listed == [
        {
            "resource_id": "1",
            "reservations": [
                {
                    "id": lease.reservations[0].id,
                    "lease_id": lease.id,
                    "start_date": "2027-03-01T09:30:00Z",
                    "end_date": "2027-03-02T09:30:00Z",
                }
            ],
        }
    ]
    assert len(json.loads(tenure("allocation", "list", "host", "-f", "json").output)) == 2
    assert "2027-03-01 10:30 CET to 2027-03-02 10:30 CET" in tenure("allocation", "show", "host", "c1").output
    assert tenure("allocation", "list", "server").code == 2


def test_help_and_an_unknown_command(tenure: Run) -> None:
    overview = tenure("--help")
    assert overview.code == 0
    assert "lease create" in overview.output
    assert "usage: tenure [options] COMMAND" in overview.output
    unknown = tenure("lease", "crate")
    assert unknown.code == 2
    assert "lease create" in unknown.output


def test_an_unreachable_service_is_explained(tenure: Run) -> None:
    outcome = tenure("--os-endpoint", "http://127.0.0.1:9/v1", "lease", "list")
    assert outcome.code == 1
    assert "Is the cloud, its address and its token right?" in outcome.errors


def test_missing_feature_of_blazar_is_explained(tenure: Run, blazar: FakeServer) -> None:
    blazar.add_host("c1")
    where = ("--os-endpoint", blazar.url)
    assert tenure(*where, "lease", "create", "bio", "--hosts", "1", "--end-date", "+1d").code == 0
    assert tenure(*where, "lease", "list", "-f", "value", "-c", "name").output == "bio\n"
    outcome = tenure(*where, "lease", "history", "bio")
    assert outcome.code == 1
    assert "API 1.0 only" in outcome.errors


@pytest.mark.parametrize("option", ["--for", "--hold"])
def test_zero_duration_is_not_the_default_duration(server: FakeServer, tenure: Run, option: str) -> None:
    server.add_host("c1")
    outcome = tenure("lease", "create", "bio", "--hosts", "1", option, "0h")
    assert outcome.code != 0
    assert f"argument {option}: '0h' is no time at all" in outcome.errors
    assert last_body_or_none(server) is None


@pytest.mark.parametrize("option", ["--prolong-for", "--reduce-by", "--defer-by", "--advance-by"])
def test_change_by_zero_duration_is_refused(server: FakeServer, tenure: Run, option: str) -> None:
    outcome = tenure("lease", "set", "bio", option, "0m")
    assert outcome.code != 0
    assert "no time at all" in outcome.errors


def test_the_end_is_read_from_the_start_on(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    outcome = tenure(
        *("lease", "create", "bio", "--hosts", "1", "--start", "friday 9am", "--end", "monday 9am"),
        *("--before-end", "sunday 12:00", "--notify", "sunday 18:00", "save it"),
    )
    assert outcome.code == 0, outcome.errors
    body = last_body(server)
    assert (body["start_date"], body["end_date"]) == ("2027-03-05T08:00:00Z", "2027-03-08T08:00:00Z")
    assert body["before_end_date"] == "2027-03-07T11:00:00Z"
    assert [event["time"] for event in body["events"]] == ["2027-03-07T17:00:00Z"]
    assert tenure("lease", "set", "bio", "--end", "saturday 10:00").code == 0
    assert last_body(server)["end_date"] == "2027-03-06T09:00:00Z"


def test_delete_continues_after_an_unknown_lease(server: FakeServer, tenure: Run) -> None:
    for number in range(2):
        server.add_host(f"c{number}")
        assert tenure("lease", "create", f"bio-{number}", "--hosts", "1", "--start", "+1h").code == 0
    outcome = tenure("lease", "delete", "bio-0", "nosuch", "bio-1")
    assert outcome.code == 1
    assert outcome.output == "Deleted lease: bio-0\nDeleted lease: bio-1\n"
    assert "1 of 3 leases were not deleted" in outcome.errors
    assert "nosuch" in outcome.errors
    assert json.loads(tenure("lease", "list", "-f", "json").output) == []


def test_delete_continues_after_a_host_in_use(server: FakeServer, tenure: Run) -> None:
    for name in ("c1", "c2"):
        server.add_host(name)
    outcome = tenure("host", "delete", "c1", "nosuch", "c2")
    assert outcome.code == 1
    assert outcome.output == "Deleted host: c1\nDeleted host: c2\n"
    assert "1 of 3 hosts were not deleted:\nnosuch: " in outcome.errors
    assert json.loads(tenure("host", "list", "-f", "json").output) == []


def test_failed_wait_names_the_lease_that_still_exists(server: FakeServer, tenure: Run) -> None:
    server.add_host("c1")
    outcome = tenure("lease", "create", "bio", "--hosts", "1", "--start", "+2h", "--wait", "--wait-timeout", "1h")
    assert outcome.code == 1
    [lease] = json.loads(tenure("lease", "list", "-f", "json").output)
    assert f"bio, {lease['id']}, PENDING" in outcome.errors


def test_unknown_status_is_not_waited_for(server: FakeServer, tenure: Run) -> None:
    outcome = tenure("lease", "wait", "bio", "--until", "FOO")
    assert outcome.code != 0
    assert "'FOO' is no status of a lease; there are WAITING, CREATING, PENDING" in outcome.errors


HOSTILE = "bio\x1b[2J\x07\r\n\x9b31m\u202e\x7f"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("list", "-c", "name", "-c", "status_reason"), 0),
        (("show", "{id}"), 0),
        (("wait", "{id}"), 1),
        (("history", "{id}"), 0),
    ],
)
def test_control_characters_in_data_are_escaped(
    server: FakeServer, tenure: Run, command: tuple[str, ...], code: int
) -> None:
    """The server refuses them in names; a reason may quote any text of the cloud."""
    server.add_host("c1")
    assert tenure("lease", "create", "bio", "--hosts", "1", "--start", "+2h").code == 0
    [lease_id] = server.leases
    server.set_status(lease_id, "ERROR", HOSTILE)
    shown = json.loads(tenure("lease", "show", lease_id, "-f", "json").output)
    assert shown["status_reason"] == HOSTILE  # programs get the unchanged data
    arguments = [part.format(id=lease_id) for part in command]
    for formatter in ("table", "value", "csv"):
        if formatter == "csv" and command[0] not in {"list", "history"}:
            continue
        outcome = tenure("lease", *arguments, "-f", formatter)
        assert outcome.code == code, outcome.errors
        printed = outcome.output + outcome.errors
        assert printed.replace("\r\n", "\n").replace("\n", "").isprintable(), printed
        if formatter == "value" and code == 0:
            assert r"bio\x1b[2J\x07\r\n\x9b31m\u202e\x7f" in printed
        elif formatter == "value":  # a message may have several lines
            assert "\\x1b[2J\\x07\\r\n\\x9b31m\\u202e\\x7f" in printed


def test_control_characters_in_errors_are_escaped(server: FakeServer, tenure: Run) -> None:
    outcome = tenure("lease", "show", "no\x1b[2Jsuch")
    assert outcome.code == 1
    assert "\x1b" not in outcome.errors
    assert r"no\x1b[2Jsuch" in outcome.errors


def test_a_column_can_be_empty_for_some_leases(tenure: Run, server: FakeServer) -> None:
    for name in ("compute-1", "compute-2", "compute-3"):
        server.add_host(name)
    tenure("lease", "create", "a-plain", "--hosts", "1")
    tenure("lease", "create", "b-held", "--hosts", "1", "--hold", "30m")
    tenure("lease", "create", "c-plain", "--hosts", "1")
    outcome = tenure("lease", "list", "-f", "json", "-c", "name", "-c", "hold_until")
    assert outcome.code == 0, outcome.errors
    assert [lease["hold_until"] is None for lease in json.loads(outcome.output)] == [True, False, True]
    assert tenure("lease", "list", "-f", "value", "-c", "choice").output == "None\nNone\nNone\n"
