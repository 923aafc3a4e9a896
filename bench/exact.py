"""The best that could have been done by who knew all requests before: an exact solver's answer, for small cases.

A request is accepted whole or not at all, and stays where it is put. The planner may move what has not started, but
knows nothing of what is still to come: it cannot do better than this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from bench.demand import Host, Request
from bench.replay import Placed, serves
from tenure.domain.allocation import Demand, Spread
from tenure.domain.capacity import Capacity


@dataclass(frozen=True, slots=True)
class Best:
    """The largest worth of accepted requests that was found, and that there can be: the same where it is proven."""

    found: int
    bound: int

    @property
    def is_proven(self) -> bool:
        return self.found == self.bound


def best(
    hosts: Sequence[Host],
    requests: Sequence[Request],
    worth: Callable[[Request], int] = lambda _request: 1,
    *,
    seconds: float = 20.0,
) -> Best:
    """The most that can be accepted of these requests, by what each of them is worth."""
    model = cp_model.CpModel()
    accepted = [model.new_bool_var(f"accepted {request.number}") for request in requests]
    units = [_units(model, request.demand, hosts, taken) for request, taken in zip(requests, accepted, strict=True)]
    named = {name for request in requests if not request.demand.exclusive for name in request.demand.amounts}
    for index, host in enumerate(hosts):
        for instant in sorted({request.period.start for request in requests}):
            there = [
                (taken[index], _amounts(request.demand, host))
                for request, taken in zip(requests, units, strict=True)
                if request.period.start <= instant < request.period.end
            ]
            for name in named | set(host.capacity):
                model.add(sum(count * amounts[name] for count, amounts in there) <= host.capacity[name])
    model.maximize(sum(taken * worth(request) for request, taken in zip(requests, accepted, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        raise RuntimeError(f"the solver says {solver.status_name(status)}")
    return Best(round(solver.objective_value), int(solver.best_objective_bound + 1e-6))


def is_possible(
    hosts: Sequence[Host], fixed: Sequence[Placed], requests: Sequence[Request], *, seconds: float = 20.0
) -> bool | None:
    """Whether all of these requests can be arranged beside what stays; None if that is not found in time."""
    model = cp_model.CpModel()
    units = [_units(model, request.demand, hosts, model.new_constant(1)) for request in requests]
    names = {name for host in hosts for name in host.capacity}
    names |= {name for request in requests if not request.demand.exclusive for name in request.demand.amounts}
    for index, host in enumerate(hosts):
        staying = [placed for placed in fixed if placed.host == host.number]
        for instant in sorted({request.period.start for request in requests}):
            there = [
                (taken[index], _amounts(request.demand, host))
                for request, taken in zip(requests, units, strict=True)
                if request.period.contains(instant)
            ]
            used = [
                host.capacity if placed.whole else placed.amounts
                for placed in staying
                if placed.period.contains(instant)
            ]
            for name in names:
                left = host.capacity[name] - sum(amounts[name] for amounts in used)
                model.add(sum(count * amounts[name] for count, amounts in there) <= left)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    return {cp_model.OPTIMAL: True, cp_model.FEASIBLE: True, cp_model.INFEASIBLE: False}.get(status)


def _units(
    model: cp_model.CpModel, demand: Demand, hosts: Sequence[Host], taken: cp_model.IntVar
) -> list[cp_model.LinearExprT]:
    """How many units of a request are on each host: as many in all as it asks for, or none."""
    most = {Spread.AFFINITY: 1, Spread.ANTI_AFFINITY: 1, Spread.ANY: demand.minimum}[demand.spread]
    factor = demand.minimum if demand.spread is Spread.AFFINITY else 1
    found = [model.new_int_var(0, most if serves(host, demand) else 0, "") for host in hosts]
    model.add(sum(found) * factor == taken * demand.minimum)
    return [variable * factor for variable in found]


def _amounts(demand: Demand, host: Host) -> Capacity:
    return host.capacity if demand.exclusive else demand.amounts
