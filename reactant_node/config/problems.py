"""Everything that is wrong, gathered, so that an operator mends it in one go. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from reactant_node.config.checks import Unacceptable, shown
from reactant_node.config.keys import Key
from reactant_node.errors import ConfigError


class Problems:
    """A list that grows while sources are read; owned by one load.

    Args:
        where: stands before every problem that is added through this one.
        into: the list to add to; a new one where absent.
    """

    def __init__(self, where: str = "", into: list[str] | None = None) -> None:
        self._where = where
        self._found = [] if into is None else into

    def __repr__(self) -> str:
        return f"<Problems {len(self._found)}>"

    def within(self, where: str) -> Problems:
        """The same list, for a source whose problems have to name it."""
        return Problems(where, self._found)

    def add(self, problem: str) -> None:
        """One sentence, `key.path: got X; use Y`."""
        if (said := self._where + problem) not in self._found:
            self._found.append(said)

    def add_all(self, error: ConfigError) -> None:
        """What somebody else found."""
        for problem in error.problems:
            self.add(problem)

    def mention(self, pattern: str) -> bool:
        """Whether something was found whose sentence matches: what follows from it need not be said as well."""
        return any(re.search(pattern, problem) for problem in self._found)

    def raise_if_any(self) -> None:
        """Raise ConfigError with all of them."""
        if self._found:
            raise ConfigError(self._found)

    def value(self, key: Key, path: str, value: object) -> object:
        """A document's value, checked; None where it is wrong, which has then been noted."""
        return self._checked(key.check.of_value, path, value)

    def text(self, key: Key, source: str, text: str) -> object:
        """An environment variable's or flag's text, checked, likewise."""
        return self._checked(key.check.of_text, source, text)

    def _checked(self, read: Callable[[Any], object], source: str, value: object) -> object:
        try:
            return read(value)
        except Unacceptable as accepted:
            self.add(f"{source}: got {shown(value)}; {accepted}")
            return None

    def mapping(self, document: object, path: str) -> Mapping[str, object]:
        """A document's part that has to be a mapping with text keys; empty where it is not, or is null."""
        if document is None:
            return {}
        if not isinstance(document, dict):
            self.add(f"{path}: got {shown(document)}; use a mapping")
            return {}
        for key in document:
            if not isinstance(key, str):
                self.add(f"{path}: got the key {shown(key)}; keys are texts, so quote it")
        return {key: value for key, value in document.items() if isinstance(key, str)}
