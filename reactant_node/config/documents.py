"""YAML files into plain mappings: the package's one door to PyYAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from reactant_node.errors import ConfigError

MAX_FILE_BYTES = 1024 * 1024
"""A node file has a hundred lines; a megabyte is somebody's mistake, and aliases could make much of it."""


_TAG = "tag:yaml.org,2002:"

_PLAIN = (
    ("null", r"~|null|Null|NULL|", ("", *"~nN")),
    ("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", (*"yYnNtTfFoO",)),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,18})", (*"-+0123456789",)),
    (
        "float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan",
        (*"-+.0123456789",),
    ),
)
"""What an unquoted word stands for: type, pattern, first characters; everything else is a text.

YAML 1.1 knows more of it: 0600 is 384, 2:15 is 135, 1_000 is a thousand and 2026-01-01 a date. Read as texts, they
are refused where a number is wanted, as they stand in the file, and taken where a text is.
"""


_Resolvers = dict[str, list[tuple[str, re.Pattern[str]]]]


def _resolvers(before: _Resolvers) -> _Resolvers:
    """PyYAML's form of the table: by first character; `before` are asked first."""
    table = {first: [*rows] for first, rows in before.items()}
    for name, pattern, firsts in _PLAIN:
        for first in firsts:
            table.setdefault(first, []).append((_TAG + name, re.compile(rf"(?:{pattern})\Z")))
    return table


_OURS = _resolvers({})
_EITHER = _resolvers(yaml.SafeDumper.yaml_implicit_resolvers)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader for plain documents: no key said twice, no aliases, no tags, no YAML 1.1 numbers."""

    yaml_implicit_resolvers = _OURS

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("aliases are not accepted; write the value out", event)
        if getattr(event, "tag", None) is not None:
            raise _refusal(f"tags are not accepted; delete {event.tag.replace(_TAG, '!!')}", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key == "<<":
                raise _refusal("the merge key << is not accepted; write the values out", key_node)
            if isinstance(key, str) and key in seen:
                raise _refusal(f"the key {key!r} is there twice", key_node)
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that either reader, ours or another program's YAML 1.1, would take for something else."""

    yaml_implicit_resolvers = _EITHER

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the same for all
        return True


def _refusal(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


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
    except RecursionError as error:
        raise ConfigError(f"{source}: nested far deeper than a node file is") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(document, dict):
        found = "an empty file" if document is None else f"a {type(document).__name__}"
        raise ConfigError(f"{source}: got {found}; use a mapping, at least `model_repo: DIR`")
    return document


def render_document(document: dict[str, object]) -> str:
    """YAML text that `parse_document` reads back as the same mapping."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
