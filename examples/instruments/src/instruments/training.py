"""A filter: instruments are for projects whose people were trained on them, so many of them at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from instruments.resource_type import INSTRUMENT
from tenure.domain.errors import Denied
from tenure.enforcement.contract import EnforcementFilter


class TrainedFilter(EnforcementFilter):
    """Denies instruments of a kind to projects that nobody has trained on it."""

    enforcement_opts = (
        cfg.MultiStrOpt(
            "instruments_trained",
            default=[],
            help="Who was trained on what, such as microscope:<project id>; may be given several times.",
        ),
    )

    def check_create(self, context: Mapping[str, Any], lease_values: Mapping[str, Any]) -> None:
        self._check(context, lease_values)

    def check_update(
        self, context: Mapping[str, Any], current_lease_values: Mapping[str, Any], new_lease_values: Mapping[str, Any]
    ) -> None:
        del current_lease_values
        self._check(context, new_lease_values)

    def _check(self, context: Mapping[str, Any], lease: Mapping[str, Any]) -> None:
        for one in lease["reservations"]:
            if one["resource_type"] != INSTRUMENT:
                continue
            if f"{one['kind']}:{context['project_id']}" not in self.instruments_trained:
                raise Denied(f"Nobody in this project was trained on a {one['kind']} yet.")
