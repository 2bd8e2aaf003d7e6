"""YAML files into plain mappings: the package's one door to PyYAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from reactant_node.errors import ConfigError

MAX_FILE_BYTES = 1024 * 1024
"""A node file has a hundred lines; a megabyte is somebody's mistake, and aliases could make much of it."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, that refuses a key said twice and has no aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases are not accepted; write the value out", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(
                    problem="the merge key << is not accepted; write the values out", problem_mark=key_node.start_mark
                )
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is there twice", problem_mark=key_node.start_mark)
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


def read_document(path: Path) -> dict[str, object]:
    """The mapping a YAML file holds.

    Raises:
        ConfigError: it cannot be read, is no YAML (with line and column), or is no mapping.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable YAML file") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes; this is no node file")
    return parse_document(content, str(path))


def parse_document(content: bytes | str, source: str) -> dict[str, object]:
    """The mapping that YAML text holds; raises like `read_document`, with `source` for the path."""
    try:
        document = yaml.load(content, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}{where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(document, dict):
        found = "an empty file" if document is None else f"a {type(document).__name__}"
        raise ConfigError(f"{source}: got {found}; use a mapping, at least `model_repo: DIR`")
    return document


def render_document(document: dict[str, object]) -> str:
    """YAML text that `parse_document` reads back as the same mapping."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
