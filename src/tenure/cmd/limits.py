"""The limits of ``tenure-standalone``: a file beside its databases, written on the first start and read on each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from tenure.cmd.whole_files import replacing
from tenure.drivers.simulated.openstack.state import CloudQuotas
from tenure.operator_yaml import RepeatedKey, read_yaml

NAME = "limits.yaml"

_FIRST = """\
# How much a project may have, and how long a lease may last; -1 is no limit. Read when the service starts.
# The project of the user "admin" is exempt.
longest_lease_days: 366
limits:
  leases: 1000
  hosts: 1000
  instances: 10000
  floating_ips: 1000
  volumes: 10000
  servers: 1000
# How much a project may have in the simulated cloud itself.
cloud:
  servers: 200
  cores: 1000
  images: 500
  volumes: 10000
"""

_UNLIMITED = 2**63
_Limit = Annotated[StrictInt, Field(ge=-1, le=2**31 - 1)]


class LimitsError(Exception):
    """The file is invalid; the text says what is wrong."""


class _OfCloud(BaseModel):
    model_config = ConfigDict(extra="forbid")

    servers: _Limit = CloudQuotas.servers
    cores: _Limit = CloudQuotas.cores
    images: _Limit = CloudQuotas.images
    volumes: _Limit = CloudQuotas.volumes

    def quotas(self) -> CloudQuotas:
        limits = {name: _UNLIMITED if limit < 0 else limit for name, limit in self.model_dump().items()}
        return CloudQuotas(**limits)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    longest_lease_days: _Limit
    limits: dict[str, _Limit]
    #: Files of earlier releases do not have it.
    cloud: _OfCloud = Field(default_factory=_OfCloud)


@dataclass(frozen=True, slots=True)
class StandaloneLimits:
    """The content of the file."""

    #: The longest duration of a lease; None for no limit.
    longest_lease: timedelta | None
    #: The limits of each project, by name.
    of_projects: Mapping[str, int]
    #: The quotas of each project in the simulated cloud.
    of_cloud: CloudQuotas


def _write_first(path: Path) -> None:
    try:
        with replacing(path) as unfinished:
            unfinished.write_text(_FIRST)
    except OSError as error:
        raise LimitsError(f"{path} cannot be written: {error.strerror}") from None


def read_limits(folder: Path, names: Collection[str]) -> StandaloneLimits:
    """Return the limits of the file in the folder; create the file if it is missing.

    ``names`` are the limits that exist. Raises ``LimitsError`` for an invalid file, or if it cannot be created.
    """
    path = folder / NAME
    if not path.exists():
        _write_first(path)
    try:
        given = _File.model_validate(read_yaml(path.read_text()))
    except OSError as error:
        raise LimitsError(f"{path} cannot be read: {error.strerror}") from None
    except RepeatedKey as error:
        raise LimitsError(f"{path}, {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise LimitsError(f"{path} is no YAML") from None
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'file'}: {problem['msg']}" for problem in error.errors()
        )
        raise LimitsError(f"{path} is not as it must be: {problems}") from None
    unknown = sorted(given.limits.keys() - set(names))
    if unknown:
        raise LimitsError(f"{path} limits {unknown[0]}, which there is not; there is {', '.join(sorted(names))}")
    days = given.longest_lease_days
    return StandaloneLimits(None if days < 0 else timedelta(days=days), given.limits, given.cloud.quotas())
