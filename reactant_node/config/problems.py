"""Everything that is wrong, gathered, so that an operator mends it in one go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from reactant_node.config.checks import Unacceptable, shown
from reactant_node.config.keys import Key, Values, unknown
from reactant_node.errors import ConfigError


class Problems:
    """A list that grows while sources are read; owned by one load."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, problem: str) -> None:
        """One sentence, `key.path: got X; use Y`."""
        if problem not in self._found:
            self._found.append(problem)

    def raise_if_any(self) -> None:
        """Raise ConfigError with all of them."""
        if self._found:
            raise ConfigError(self._found)

    def value(self, key: Key, path: str, value: object) -> object:
        """A document's value, checked; None where it is wrong, which has then been noted."""
        try:
            return key.check.of_value(value)
        except Unacceptable as accepted:
            self.add(f"{path}: got {shown(value)}; {accepted}")
            return None

    def text(self, key: Key, source: str, text: str) -> object:
        """An environment variable's or flag's text, checked, likewise."""
        try:
            return key.check.of_text(text)
        except Unacceptable as accepted:
            self.add(f"{source}: got {shown(text)}; {accepted}")
            return None

    def mapping(self, document: object, path: str) -> Mapping[str, object]:
        """A document's part that has to be a mapping with text keys; empty where it is not."""
        if document is None:
            return {}
        if not isinstance(document, dict):
            self.add(f"{path}: got {shown(document)}; use a mapping")
            return {}
        for key in document:
            if not isinstance(key, str):
                self.add(f"{path}: got the key {shown(key)}; keys are texts, so quote it")
        return {key: value for key, value in document.items() if isinstance(key, str)}

    def values(self, document: object, keys: Mapping[str, Key], path: str, *, but: Iterable[str] = ()) -> Values:
        """A document's part checked against a table of keys.

        Args:
            document: nested mappings, as parsed.
            keys: the table, by path below this part.
            path: of this part, for messages; empty for a whole file.
            but: first-level keys that somebody else reads.

        Returns:
            By path below this part, what is set and right. A null counts as not set.
        """
        found: Values = {}
        for below, value in _leaves(self.mapping(document, path or "the file"), keys, tuple(but)):
            where = f"{path}.{below}" if path else below
            if below not in keys:
                self.add(f"{where}: {unknown(below, keys).partition(': ')[2]}")
            elif value is not None and (checked := self.value(keys[below], where, value)) is not None:
                found[below] = checked
        return found


def _leaves(
    document: Mapping[str, object], keys: Iterable[str], but: tuple[str, ...], prefix: str = ""
) -> Iterator[tuple[str, object]]:
    sections = {path[: len(prefix)] + path[len(prefix) :].split(".")[0] for path in keys if "." in path[len(prefix) :]}
    for key, value in document.items():
        path = prefix + key
        if path in but:
            continue
        if path in sections and isinstance(value, dict):
            texts = {str(name): item for name, item in value.items()}
            yield from _leaves(texts, [it for it in keys if it.startswith(f"{path}.")], but, f"{path}.")
        elif path in sections and value is None:
            continue
        else:
            yield path, value
