"""Installing what the tests need leaves a machine as it was, but for the packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import debian, provision


@pytest.fixture
def machine_without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.databases.find_program", lambda name: None)
    monkeypatch.delenv("TENURE_TEST_POSTGRESQL", raising=False)
    monkeypatch.delenv("TENURE_TEST_MARIADB", raising=False)


@pytest.mark.usefixtures("machine_without_servers")
def test_missing_servers_are_named_where_installing_is_forbidden(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENURE_TEST_INSTALL", "0")
    monkeypatch.setenv("TENURE_TEST_MARIADB", "mysql://tenure@127.0.0.1")
    (sentence,) = provision.provision()
    assert sentence.startswith("postgresql: not installed (TENURE_TEST_INSTALL=0); apt-get install postgresql,")


@pytest.mark.parametrize("before", [None, "#!/bin/sh\nexit 0\n"], ids=["no policy", "a policy"])
def test_services_are_refused_only_meanwhile(tmp_path: Path, before: str | None):
    policy = tmp_path / "policy-rc.d"
    if before is not None:
        policy.write_text(before)
        policy.chmod(0o750)

    def install_that_is_interrupted() -> None:
        with debian.no_service_starts(policy):
            assert policy.read_text() == debian.REFUSE_ALL
            assert policy.stat().st_mode & 0o111 == 0o111
            raise InterruptedError

    with pytest.raises(InterruptedError):
        install_that_is_interrupted()
    if before is None:
        assert list(tmp_path.iterdir()) == []
    else:
        assert list(tmp_path.iterdir()) == [policy]
        assert policy.read_text() == before
        assert policy.stat().st_mode & 0o777 == 0o750
