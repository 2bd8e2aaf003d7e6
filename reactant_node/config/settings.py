"""A mapping of a file checked against its table: what is set, by key path. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from reactant_node.config.checks import shown
from reactant_node.config.keys import REMOVED, Key, Table, Values
from reactant_node.config.problems import Problems


@dataclass(frozen=True, slots=True)
class Settings:
    """What a mapping sets and what of it is right. A null counts as not set.

    Attributes:
        values: by path of the table's keys.
        models: by model name, then by path of the table's model keys.
    """

    values: Values = field(default_factory=dict)
    models: dict[str, Values] = field(default_factory=dict)

    def over(self, below: Settings) -> Settings:
        """Both, key by key, where this one wins."""
        names = {**below.models, **self.models}
        models = {name: {**below.models.get(name, {}), **self.models.get(name, {})} for name in names}
        return Settings({**below.values, **self.values}, models)


def read_settings(document: Mapping[str, object], table: Table, path: str, problems: Problems) -> Settings:
    """Check a mapping; what is wrong or unknown goes to `problems`.

    Args:
        document: with text keys.
        table: what it may hold.
        path: of the mapping, for messages; empty for a whole file.
        problems: grows.
    """
    found = Settings()
    _Reader(table, path, problems, found).read(document, "")
    return found


def idle_note(source: str, key: Key, value: object) -> Iterator[str]:
    """A line where a value asks for something this version does not do."""
    if key.idle is not None and value != key.idle:
        yield f"{source}: {shown(value)} is accepted and has no effect in this version"


def idle_notes(settings: Settings, table: Table, where: str) -> Iterator[str]:
    """The same for a whole mapping, models included; `where` stands before each path."""
    for path, value in settings.values.items():
        yield from idle_note(where + path, table.keys[path], value)
    for name, values in settings.models.items():
        for path, value in values.items():
            yield from idle_note(f"{where}{table.models_at}.{name}.{path}", table.model_keys[path], value)


@dataclass(frozen=True, slots=True)
class _Reader:
    table: Table
    path: str
    problems: Problems
    found: Settings

    def read(self, document: Mapping[str, object], section: str) -> None:
        """One level; `section` is empty or ends with a dot."""
        keys, siblings = self.table.keys, self._siblings(section)
        for name, value in document.items():
            path = section + name
            if path in self.table.elsewhere:
                continue
            if name not in siblings:
                self.problems.add(f"{self._where(path)}: {self._unknown(name, path, siblings)}")
            elif path == self.table.models_at:
                self._read_models(value)
            elif path not in keys:
                self.read(self.problems.mapping(value, self._where(path)), f"{path}.")
            elif value is not None and (right := self.problems.value(keys[path], self._where(path), value)) is not None:
                self.found.values[path] = right

    def _read_models(self, document: object) -> None:
        where = self._where(self.table.models_at)
        for name, policy in self.problems.mapping(document, where).items():
            part = self.problems.mapping(policy, f"{where}.{name}")
            settings = read_settings(part, Table(self.table.model_keys), f"{where}.{name}", self.problems)
            self.found.models[name] = settings.values

    def _where(self, path: str) -> str:
        return f"{self.path}.{path}" if self.path else path

    def _siblings(self, section: str) -> list[str]:
        """Names that may stand at a level."""
        paths = [*self.table.keys, *filter(None, [self.table.models_at])]
        return sorted({path[len(section) :].split(".")[0] for path in paths if path.startswith(section)})

    def _unknown(self, name: str, path: str, siblings: list[str]) -> str:
        """The hint: a slip of the pen, a key that belongs elsewhere, else what may stand here."""
        if path in REMOVED:
            return REMOVED[path]
        here = {it: it for it in [*siblings, *(() if "." in path else self.table.elsewhere)]}
        elsewhere = {it.rpartition(".")[2]: it for it in [*self.table.keys, *self.table.hints]}
        for candidates in (here, elsewhere):
            if near := get_close_matches(name, candidates, n=1):
                return f"unknown key; did you mean {candidates[near[0]]}?"
        return f"unknown key; use {', '.join(here)}"
