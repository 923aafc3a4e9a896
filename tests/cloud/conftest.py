"""What tests of a real cloud are given: sessions of its accounts, and addresses of its services.

The cloud is that of ``make cloud``, or any other that TENURE_CLOUD_ROOT leads to. Tests share it and run one at a
time; each takes away what it has made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from keystoneauth1.exceptions import ClientException
from keystoneauth1.session import Session

from tests.conftest import NOTHING_LEFT_OUT
from tests.support.cloud import Cloud, Undo
from tests.support.site import Site, open_site


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that none can be forgotten.

    A module that inherits its tests names in ``EVERY_TIME`` those of them that are not long.
    """
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        item.add_marker(pytest.mark.cloud)
        assert isinstance(item, pytest.Function)
        every_time = getattr(item.module, "EVERY_TIME", None)
        if every_time is not None and item.originalname not in every_time:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def cloud() -> Cloud:
    """The cloud that is up. Without one the test is skipped, or fails if nothing may be left out."""
    try:
        cloud = Cloud.of_openrc()
        cloud.session().get_token()
    except FileNotFoundError as error:
        _go_without(f"{error.filename} is not there")
    except ClientException as error:
        _go_without(str(error))
    return cloud


def _go_without(reason: str) -> NoReturn:
    text = f"no cloud is up ({reason}): `make cloud` starts one"
    if os.environ.get(NOTHING_LEFT_OUT) == "1":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@pytest.fixture(scope="session")
def admin(cloud: Cloud) -> Session:
    """The cloud's administrator."""
    return cloud.session("admin")


@pytest.fixture(scope="session")
def demo(cloud: Cloud) -> Session:
    """A member of the project ``demo``, no administrator."""
    return cloud.session("demo")


@pytest.fixture(scope="session")
def other(cloud: Cloud) -> Session:
    """A member of the project ``other``, no administrator."""
    return cloud.session("other")


@pytest.fixture(scope="session")
def service_account(cloud: Cloud) -> Session:
    """The account that Tenure acts as: ``tenure`` in the project ``service``."""
    return cloud.session("tenure", "service")


@pytest.fixture(scope="session")
def deployed(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tenure beside the cloud, for all tests that do not need one of their own."""
    with open_site(tmp_path_factory.mktemp("site"), cloud) as site:
        yield site


@pytest.fixture
def site(deployed: Site) -> Iterator[Site]:
    """Tenure beside the cloud, with no hosts and no leases before the test nor after it."""
    yield deployed
    deployed.nova.delete_booted()
    deployed.clear()


@pytest.fixture
def undo() -> Iterator[Undo]:
    """Actions that remove the objects of a test; run in reverse order, each even if others fail."""
    actions: Undo = []
    yield actions
    errors = []
    for action in reversed(actions):
        try:
            action()
        except Exception as error:  # noqa: BLE001 - all of them are raised together below
            errors.append(error)
    if errors:
        raise ExceptionGroup("what the test made is still there", errors)
