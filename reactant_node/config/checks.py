"""What one configuration value may be: a type, a range, a set of words. Pure.

A check takes a value as YAML or the environment gave it and returns it in the type the dataclasses hold, or raises
`Unacceptable` with what would be accepted. A value from the environment is text and is read as such (`from_text`);
one from a file already has a type, and that has to be the right one: `yes` for a number, or a number for a name,
is an error and never guessed at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})

MAX_SHOWN = 60
"""Characters of a wrong value that a message repeats."""


class Unacceptable(ValueError):
    """A value is not what its key takes; the text says what it takes, to follow `got X; `."""


@dataclass(frozen=True, slots=True)
class Check:
    """How to read one value.

    Attributes:
        of_value: from a typed document.
        of_text: from an environment variable or flag.
    """

    of_value: Callable[[object], object]
    of_text: Callable[[str], object]


def shown(value: object) -> str:
    """A value for a message: short, and with nothing that could break a line."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def boolean() -> Check:
    """`true` or `false`; in text also 1, yes, on and 0, no, off, in any case."""

    def of_value(value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise Unacceptable("use true or false")

    def of_text(text: str) -> bool:
        word = text.strip().lower()
        if word in TRUE_WORDS | FALSE_WORDS:
            return word in TRUE_WORDS
        raise Unacceptable("use 1, true, yes or on, or 0, false, no or off")

    return Check(of_value, of_text)


def integer(low: int, high: int | None = None) -> Check:
    """A whole number from `low` to `high`, both included."""
    accepted = f"use a whole number from {low} to {high}" if high is not None else f"use a whole number, {low} or more"

    def of_value(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= (value if high is None else high):
            return value
        raise Unacceptable(accepted)

    def of_text(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()):
            raise Unacceptable(accepted)
        return of_value(int(text))

    return Check(of_value, of_text)


def number(low: float, high: float | None = None, *, above_low: bool = False, below_high: bool = False) -> Check:
    """A finite number in a range; an end is left out where `above_low` or `below_high` says so."""
    ends = [f"above {low:g}" if above_low else f"of {low:g} or more"]
    if high is not None:
        ends.append(f"below {high:g}" if below_high else f"up to {high:g}")
    accepted = f"use a number {' and '.join(ends)}"

    def fits(value: float) -> bool:
        low_fits = value > low if above_low else value >= low
        high_fits = high is None or (value < high if below_high else value <= high)
        return math.isfinite(value) and low_fits and high_fits

    def of_value(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 and fits(value):
            return float(value)
        raise Unacceptable(accepted)

    def of_text(text: str) -> float:
        try:
            return of_value(float(text))
        except ValueError as error:
            raise Unacceptable(accepted) from error

    return Check(of_value, of_text)


def choice(*words: str, also: dict[str, str] | None = None) -> Check:
    """One of some words, in any case; `also` maps further spellings to them."""
    spellings = {**{word: word for word in words}, **(also or {})}
    accepted = f"use {', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else f"use {words[0]}"

    def of_text(text: str) -> str:
        word = text.strip().lower()
        if word in spellings:
            return spellings[word]
        raise Unacceptable(accepted)

    def of_value(value: object) -> str:
        if isinstance(value, str):
            return of_text(value)
        raise Unacceptable(accepted)

    return Check(of_value, of_text)


def text(what: str = "a text", *, pattern: str | None = None) -> Check:
    """A text without control characters, not empty, in the form of a pattern where there is one."""

    def of_text(value: str) -> str:
        if value.strip() and value.isprintable() and (pattern is None or re.fullmatch(pattern, value)):
            return value
        raise Unacceptable(f"use {what}")

    def of_value(value: object) -> str:
        if isinstance(value, str):
            return of_text(value)
        raise Unacceptable(f"use {what}")

    return Check(of_value, of_text)


def texts(what: str, *, separator: str) -> Check:
    """A list of texts; in the environment one text with separators. Empty items are dropped there."""
    one = text(what)

    def of_value(value: object) -> tuple[object, ...]:
        if isinstance(value, list):
            return tuple(one.of_value(item) for item in value)
        raise Unacceptable(f"use a list: each item {what}")

    def of_text(value: str) -> tuple[object, ...]:
        return tuple(one.of_text(item.strip()) for item in value.split(separator) if item.strip())

    return Check(of_value, of_text)


def octal_mode() -> Check:
    """A file mode in octal digits, quoted in YAML, at most 777 (YAML reads a bare 0600 as the number 384)."""
    return text('a mode in octal digits as a quoted text, at most "777", such as "600"', pattern="0?[0-7]{1,3}")


PORT = integer(0, 65535)
BYTES = integer(1, 2**31 - 1)
NAME = text(
    "a name of letters, digits, '.', '_' and '-', at most 64 of them", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
)
