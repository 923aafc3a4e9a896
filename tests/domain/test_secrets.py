"""Values stand in logs and error messages as ``repr`` shows them: without secrets."""

from __future__ import annotations

from datetime import UTC, datetime

from tenure.domain.actor import Actor
from tenure.domain.lease import Lease, LeaseStatus

SECRET = "secret-0815"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_an_actor_does_not_show_the_token():
    actor = Actor("a-user", "a-project", token=SECRET)
    assert "a-user" in repr(actor)
    assert SECRET not in repr(actor)


def test_a_lease_does_not_show_the_trust():
    lease = Lease("a-lease", "", "", "", NOW, NOW, LeaseStatus.ACTIVE, None, False, 1, (), (), NOW, trust_id=SECRET)
    assert "a-lease" in repr(lease)
    assert SECRET not in repr(lease)
