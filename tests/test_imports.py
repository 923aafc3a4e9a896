"""The import rule: pure, database and cloud stay apart, and imports run downwards only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

REPOSITORY = Path(__file__).parents[1]

#: What each layer may import beside itself. A name with a dot stands for that one module of a layer.
ALLOWED: Mapping[str, frozenset[str]] = {
    layer: frozenset(may_import.split())
    for layer, may_import in {
        "domain": "",
        "clock": "",
        "collection": "",
        "open_file": "",
        "operator_yaml": "",
        "tracing": "",
        "metrics": "",
        "deadlines": "domain",
        "config": "domain",
        "enforcement": "domain",
        "store": "domain clock deadlines open_file",
        "resources": "domain clock",
        "drivers": "domain clock open_file tracing",
        "planning": "domain deadlines",
        "services": "domain clock deadlines collection metrics tracing planning store resources drivers.contract"
        " enforcement.contract",
        "engine": "domain clock deadlines metrics tracing services drivers.contract",
        "api": "domain clock deadlines metrics operator_yaml tracing services resources.contract",
        "rpc": "domain clock deadlines tracing services drivers.contract",
        "web": "domain clock services",
        "testing": "domain clock resources.contract drivers.contract",
        "factory": "domain clock deadlines metrics planning store resources drivers enforcement services engine api"
        " web",
        "deployment": "domain clock metrics tracing config store resources drivers enforcement services engine api rpc"
        " factory",
        "simulation": "domain clock store resources drivers services api factory",
        "cmd": "domain clock collection metrics operator_yaml tracing config store resources drivers services engine"
        " api rpc web factory deployment",
    }.items()
}

#: Packages that are an edge of their layer, each with the only modules beside it that may import it.
EDGES: Mapping[str, frozenset[str]] = {
    "tenure.api.blazar": frozenset({"tenure.api.dialects", "tenure.api.table"}),
}
#: What planning may import beside ours and the standard library: it needs no database and no service.
FOR_PLANNING = frozenset({"numpy", "ortools"})

#: Names that say nothing, and so attract everything.
ATTICS = frozenset({"util", "utils", "common", "helper", "helpers"})


def violations(sources: Mapping[str, str]) -> list[str]:
    """Return what breaks the rule in these modules of ``tenure``, given by path below ``src``."""
    found: list[str] = []
    imported: dict[str, set[str]] = {}
    for path, source in sources.items():
        module = _Module(path, ast.parse(source, path), frozenset(map(_name, sources)))
        found += module.violations()
        imported[module.name] = {target for _, target in module.imports if target in module.known}
    return found + (_cycles(imported, "modules") or _cycles(_by_package(imported), "packages"))


class _Module:
    """One module, and what it imports of ours."""

    def __init__(self, path: str, tree: ast.Module, known: frozenset[str]) -> None:
        self.path = path
        self.name = _name(path)
        self.tree = tree
        self.known = known
        self.imports = [
            (node, target)
            for node in ast.walk(tree)
            for target in self._targets(node)
            if target.split(".")[0] == "tenure"
        ]

    def violations(self) -> Iterator[str]:
        layer = _layer(self.name)
        if layer and layer not in ALLOWED:
            yield f"{self.path}: {layer} is no layer that the rule knows"
            return
        if ATTICS & set(self.name.split(".")):
            yield f"{self.path}: a module is named for what it holds"
        inside_functions = {
            inner
            for outer in ast.walk(self.tree)
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for inner in ast.walk(outer)
        }
        for node, target in self.imports:
            where = f"{self.path}:{getattr(node, 'lineno', 0)}"
            if node in inside_functions:
                yield f"{where}: imports {target} inside a function"
            if not self._may_import(target):
                yield f"{where}: {layer or 'tenure'} may not import {target}"

    def _may_import(self, target: str) -> bool:
        for edge, importers in EDGES.items():
            if f"{target}.".startswith(f"{edge}.") and not self.name.startswith(edge) and self.name not in importers:
                return False
        layer = _layer(self.name)
        if _layer(target) in {"", layer}:
            return True
        allowed = ALLOWED.get(layer, frozenset())
        return _layer(target) in allowed or any(
            "." in name and f"{target}.".startswith(f"tenure.{name}.") for name in allowed
        )

    def _targets(self, node: ast.AST) -> Iterator[str]:
        """Give the full names of the modules that a statement, or a call of ``import_module``, imports."""
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = self._absolute(module, level)
                for alias in names:  # `from package import name`: a module, or something in one
                    name = f"{base}.{alias.name}"
                    is_module = name in self.known or (base == "tenure" and alias.name in ALLOWED)
                    yield name if is_module else base
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name

    def _absolute(self, module: str | None, level: int) -> str:
        if level == 0:
            return module or ""
        package = self.name.split(".")
        above = level if not self.path.endswith("/__init__.py") else level - 1
        return ".".join([*package[: len(package) - above], *([module] if module else [])])


def _name(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _layer(module: str) -> str:
    """Return the layer of a module: what comes after ``tenure``; empty for ``tenure`` itself."""
    return ".".join(module.split(".")[1:2])


def _by_package(imported: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return which parts of the layers import which: a package below a layer, or a module that is in none.

    The API is left out: what reads a body and how errors look in its version know each other there.
    """
    packages: dict[str, set[str]] = {}
    for name, targets in imported.items():
        if _layer(name) != "api":
            packages.setdefault(_package(name), set()).update(map(_package, targets))
    return packages


def _package(module: str) -> str:
    return ".".join(module.split(".")[:3])


def _cycles(imported: Mapping[str, set[str]], what: str) -> list[str]:
    try:
        TopologicalSorter({name: targets - {name} for name, targets in imported.items()}).prepare()
    except CycleError as error:
        return [f"{what} import each other: {' -> '.join(reversed(error.args[1]))}"]
    return []


def test_the_server_keeps_the_import_rule():
    root = REPOSITORY / "src"
    sources = {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*.py"))}
    assert sources
    assert violations(sources) == []


def imports_beside_ours(source: str) -> set[str]:
    """Return the packages that a module imports, but ours and those of the standard library."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.split(".")[0])
    return found - {"tenure"} - sys.stdlib_module_names


def test_planning_reaches_neither_the_store_nor_a_database():
    root = REPOSITORY / "src"
    sources = {_name(path.relative_to(root).as_posix()): path for path in root.rglob("*.py")}
    left = {name for name in sources if name.startswith("tenure.planning")}
    assert len(left) > 10
    reached: set[str] = set()
    while left:
        name = left.pop()
        reached.add(name)
        source = sources[name].read_text()
        assert imports_beside_ours(source) <= FOR_PLANNING, name
        module = _Module(sources[name].relative_to(root).as_posix(), ast.parse(source), frozenset(sources))
        left |= {target for _, target in module.imports if target in sources} - reached
    assert {_layer(name) for name in reached} <= {"", "planning", "domain", "deadlines"}


@pytest.mark.parametrize("distribution", ["client", "nova"])
def test_other_distributions_do_not_import_the_server(distribution: str):
    """But for the server that the client has for tests of programs, which is an extra of its distribution."""
    root = REPOSITORY / distribution / "src"
    for path in sorted(set(root.rglob("*.py")) - set(root.glob("tenureclient/testing/*.py"))):
        module = _Module(path.relative_to(root).as_posix(), ast.parse(path.read_text()), frozenset())
        assert module.imports == [], path


EMPTY = {"tenure/domain/lease.py": "", "tenure/domain/__init__.py": "", "tenure/drivers/contract.py": ""}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tenure/domain/period.py", "from tenure.clock import Clock"),
        ("tenure/store/leases.py", "from tenure.services.leases import LeaseService"),
        ("tenure/store/leases.py", "import tenure.services.leases"),
        ("tenure/store/leases.py", "from tenure import services"),
        ("tenure/store/leases.py", "from ..services import leases"),
        ("tenure/store/__init__.py", "from ..services import leases"),
        ("tenure/store/leases.py", "import importlib\nimportlib.import_module('tenure.services')"),
        ("tenure/store/leases.py", "try:\n    import tenure.api\nexcept ImportError:\n    pass"),
        ("tenure/store/leases.py", "if TYPE_CHECKING:\n    import tenure.api"),
        ("tenure/resources/host.py", "from tenure.drivers.contract import CloudDriver"),
        ("tenure/api/leases.py", "from tenure.api.blazar.lists import PAGE"),
        ("tenure/api/leases.py", "import tenure.api.blazar"),
        ("tenure/services/leases.py", "from tenure.drivers.simulated import SimulatedCloud"),
        ("tenure/services/leases.py", "from tenure.drivers import simulated"),
        ("tenure/services/leases.py", "from tenure.drivers.contracts import Near"),
        ("tenure/engine/loop.py", "from tenure.store.events import EventStore"),
        ("tenure/api/app.py", "from tenure.store import leases"),
        ("tenure/api/app.py", "from tenure.config import Config"),
        ("tenure/services/leases.py", "from tenure.factory import build"),
        ("tenure/factory.py", "from tenure.cmd.api import main"),
        ("tenure/planning/plan.py", "from tenure.store.database import Database"),
        ("tenure/planning/plan.py", "from tenure.services.context import Rules"),
        ("tenure/planning/plan.py", "from tenure.clock import Clock"),
        ("tenure/store/allocations.py", "from tenure.planning.snapshot import Snapshot"),
        ("tenure/api/app.py", "from tenure.planning import plan"),
        ("tenure/__init__.py", "from tenure.domain.lease import Lease"),
        ("tenure/testing/resources.py", "from tenure.drivers.simulated import SimulatedCloud"),
        ("tenure/factory.py", "from tenure.testing.rig import command_of"),
    ],
)
def test_an_import_that_runs_upwards_is_seen(path: str, source: str):
    (violation,) = violations(EMPTY | {path: source})
    assert "may not import" in violation


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("tenure/store/leases.py", "def f():\n    from tenure.domain import lease", "inside a function"),
        (
            "tenure/store/leases.py",
            "class A:\n    async def f(self):\n        import tenure.domain",
            "inside",
        ),
        ("tenure/store/leases.py", "f = lambda: __import__('tenure.domain')", "inside a function"),
        ("tenure/domain/utils.py", "", "named for what it holds"),
        ("tenure/store/common/rows.py", "", "named for what it holds"),
        ("tenure/plumbing/pipes.py", "", "plumbing is no layer"),
    ],
)
def test_a_way_around_the_rule_is_seen(path: str, source: str, message: str):
    (violation,) = violations(EMPTY | {path: source})
    assert message in violation


def test_modules_that_import_each_other_are_seen():
    cycle = {
        "tenure/domain/lease.py": "from tenure.domain import period",
        "tenure/domain/period.py": "from tenure.domain.allocation import Allocation",
        "tenure/domain/allocation.py": "from .lease import Lease",
    }
    (violation,) = violations(cycle)
    assert violation.startswith("modules import each other: ")
    assert {"tenure.domain.lease", "tenure.domain.period", "tenure.domain.allocation"} <= set(violation.split())


def test_packages_that_import_each_other_are_seen():
    cycle = {
        "tenure/services/leases/dates.py": "from tenure.services.events import commands",
        "tenure/services/leases/access.py": "",
        "tenure/services/events/commands.py": "from tenure.services.leases import access",
    }
    (violation,) = violations(cycle)
    assert violation.startswith("packages import each other: ")
    assert {"tenure.services.leases", "tenure.services.events"} <= set(violation.split())


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tenure/domain/period.py", "import datetime\nfrom tenure.domain.lease import Lease"),
        ("tenure/store/leases.py", "from tenure.domain import lease\nfrom tenure.clock import Clock"),
        ("tenure/services/leases.py", "from tenure.drivers.contract import CloudDriver"),
        ("tenure/services/leases.py", "from tenure.drivers import contract"),
        ("tenure/engine/loop.py", "import tenure.drivers.contract"),
        ("tenure/planning/plan.py", "from tenure.domain.lease import Lease\nfrom tenure import deadlines"),
        ("tenure/services/leases.py", "from tenure.planning.plan import plan"),
        ("tenure/api/app.py", "def f():\n    import json"),
        ("tenure/api/app.py", "from tenure import __version__"),
        ("tenure/api/app.py", "import tenure\nfrom tenure.services.leases import LeaseService"),
        ("tenure/api/__init__.py", "from tenure.api.app import App"),
        ("tenure/api/table.py", "from tenure.api.blazar.operations import with_blazar"),
        ("tenure/deployment.py", "from tenure.config import Config\nfrom tenure.drivers import simulated"),
        ("tenure/cmd/api.py", "from tenure.factory import build"),
        ("tenure/testing/resources.py", "from tenure.drivers.contract import CloudDriver"),
    ],
)
def test_the_rule_passes_permitted_imports(path: str, source: str):
    assert violations(EMPTY | {path: source}) == []
