"""Count the functions inside functions, and the lambdas, of Python code: how much of it does not read top-down.

``python -m tools.closures src/tenure/services`` prints each file that has some, and how many there are per 1,000 lines.
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path


def closures_in(source: str) -> int:
    """Return how many lambdas and functions inside functions a module has; methods of classes are none."""
    return sum(_count(node, inside=False) for node in ast.iter_child_nodes(ast.parse(source)))


def _count(node: ast.AST, *, inside: bool) -> int:
    """Return how many there are in a node, itself included; ``inside`` if it is in a function."""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    here = isinstance(node, ast.Lambda) or (is_function and inside)
    inside = is_function or (inside and not isinstance(node, ast.ClassDef))
    return here + sum(_count(child, inside=inside) for child in ast.iter_child_nodes(node))


def closures_per_1000_lines(sources: list[str]) -> float:
    """Return how many closures and lambdas these modules have per 1,000 lines."""
    lines = sum(len(source.splitlines()) for source in sources)
    return 1000 * sum(map(closures_in, sources)) / lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.closures", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    sources = {path: path.read_text() for path in sorted(folder.rglob("*.py"))}
    for path, source in sources.items():
        if count := closures_in(source):
            print(f"{count:4} {path}")
    print(f"{closures_per_1000_lines(list(sources.values())):.1f} per 1,000 lines")


if __name__ == "__main__":
    main()
