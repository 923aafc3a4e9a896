"""The YAML files of operators, read without keys that another one of the same name replaces unseen."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class RepeatedKey(yaml.YAMLError):
    """A mapping has the same key twice. The text of the error has the line of the second, which begins at 1."""

    def __init__(self, key: str, line: int, first_line: int) -> None:
        super().__init__(f"line {line}: {key!r} is there already, in line {first_line}")


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first_lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:  # before merged mappings are added, whose keys may be replaced
            if not isinstance(key, yaml.ScalarNode):
                continue
            line = key.start_mark.line + 1
            if (key.tag, key.value) in first_lines:
                raise RepeatedKey(key.value, line, first_lines[key.tag, key.value])
            first_lines[key.tag, key.value] = line
        return super().construct_mapping(node, deep)


def read_yaml(text: str | bytes) -> object:
    """Return the content of YAML or JSON.

    Raises ``RepeatedKey`` for a key that a mapping has twice, and ``yaml.YAMLError`` for other faults.
    """
    return yaml.load(text, _Loader)  # a safe loader
