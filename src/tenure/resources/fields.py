"""The parameters that several resource types share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from tenure.domain.capacity import MAX_AMOUNT
from tenure.resources import blazar
from tenure.resources.contract import NOTIFY
from tenure.resources.parameters import ABSENT, Forms

Count = Annotated[StrictInt, Field(ge=1, le=MAX_AMOUNT)]
PropertyExpression = Annotated[
    StrictStr,
    Field(
        max_length=16384,
        description="An expression of the property language as JSON text, such as "
        '`["==", "$gpu", "a100"]` or `["in", "$rack", "r1", "r2"]`, joined by `and`, `or` and `not`; empty for none.',
    ),
]
BeforeEnd = Annotated[
    Literal["default", "snapshot", "notify", "none", ""],
    Field(
        description="What is done before the end: `snapshot` (an image of each server), `notify` (a notification), "
        "`none` or an empty text, or `default`: what the operator has set."
    ),
]

#: A number that has to be there.
Number = Annotated[blazar.Count, Forms(strict=Count)]
#: What is asked of the properties.
Requirements = Annotated[blazar.KeptExpression, Forms(strict=PropertyExpression, lenient=blazar.Expression, default="")]
#: What is done before the end.
Action = Annotated[BeforeEnd, Forms(lenient=blazar.Action, lenient_change=blazar.ActionChange)]
#: The same, where only others can be told: what Blazar does not have.
Notice = Annotated[
    Literal["default", "notify", "none", ""],
    Field(description="What is done before the end: `notify` (a notification); nothing for every other."),
    Forms(lenient=ABSENT),
]


def action_of(parameters: Mapping[str, object], default: str = "") -> str | None:
    """Return the action before the end in the parameters, or None; ``default`` is the operator's."""
    action = parameters.get("before_end", "default")
    action = default if action == "default" else str(action)
    return None if action in {"", "none"} else action


def acts_as_owner(action: str | None) -> bool:
    """Whether an action before the end is done in the cloud, and so as the owner."""
    return action not in {None, NOTIFY}


Affinity = Annotated[
    StrictBool | None,
    Field(description="`true`: all on one host; `false`: each on a host of its own; `null`: no matter."),
]
#: How the units lie, where that has to be said.
Spreading = Annotated[blazar.Affinity, Forms(strict=Affinity, default=None)]
