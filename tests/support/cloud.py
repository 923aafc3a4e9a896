"""The real cloud for tests: its accounts and its services."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keystoneauth1.adapter import Adapter
from keystoneauth1.identity import V3Password
from keystoneauth1.session import Session

from tests.support.waiting import patience

REPOSITORY = Path(__file__).parents[2]

#: Written by ``make cloud`` when all is up, removed by ``make cloud-down``.
OPENRC = Path(os.environ.get("TENURE_CLOUD_ROOT") or REPOSITORY / ".cloud") / "openrc"

Undo = list[Callable[[], object]]


@dataclass(frozen=True)
class Cloud:
    """A real cloud: its accounts, and its services."""

    openrc: dict[str, str]

    @classmethod
    def of_openrc(cls, path: Path = OPENRC) -> Cloud:
        """Return the cloud that a file to be sourced by a shell describes. Raises ``FileNotFoundError``."""
        words = shlex.split(path.read_text(), comments=True)
        return cls(dict(word.split("=", 1) for word in words if "=" in word))

    def session(self, user: str = "admin", project: str | None = None) -> Session:
        """Return a session of an account of the testbed; its project has the account's name unless another is given."""
        auth = V3Password(
            auth_url=self.openrc["OS_AUTH_URL"],
            username=user,
            password=self.openrc["OS_PASSWORD"],
            project_name=project or user,
            user_domain_id=self.openrc["OS_USER_DOMAIN_ID"],
            project_domain_id=self.openrc["OS_PROJECT_DOMAIN_ID"],
        )
        return Session(auth=auth, timeout=patience())

    def service(self, session: Session, service_type: str, microversion: str | None = None) -> Adapter:
        """Return a service as the catalogue names it: ``.get("/servers").json()``."""
        return Adapter(
            session,
            service_type=service_type,
            interface="public",
            region_name=self.openrc["OS_REGION_NAME"],
            default_microversion=microversion,
        )
