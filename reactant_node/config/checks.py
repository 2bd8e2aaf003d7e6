"""What one configuration value may be: a type, a range, a set of words. Pure.

A check takes a value as YAML or the environment gave it and returns it in the type the dataclasses hold, or raises
`Unacceptable` with what would be accepted. A value from the environment is text and is read as such (`from_text`);
one from a file already has a type, and that has to be the right one: `yes` for a number, or a number for a name,
is an error and never guessed at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})

MAX_SHOWN = 60
"""Characters of a wrong value that a message repeats."""

MAX_SECONDS = 1_000_000
"""Eleven days. The system's waits take no number of any size, and no setting of ours means more."""

MAX_PORT = 65535


class Unacceptable(ValueError):
    """A value is not what its key takes; the text says what it takes, to follow `got X; `."""


@dataclass(frozen=True, slots=True)
class Check:
    """How to read one value.

    Attributes:
        accepted: what it takes, in words; the end of the message about a wrong value.
        of_value: from a typed document.
        of_text: from an environment variable or flag.
    """

    accepted: str
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

    return Check("true or false", of_value, of_text)


def integer(low: int, high: int | None = None) -> Check:
    """A whole number from `low` to `high`, both included."""
    accepted = f"a whole number from {low} to {high}" if high is not None else f"a whole number, {low} or more"

    def of_value(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= (value if high is None else high):
            return value
        raise Unacceptable(f"use {accepted}")

    def of_text(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()):
            raise Unacceptable(f"use {accepted}")
        return of_value(int(text))

    return Check(accepted, of_value, of_text)


def number(low: float, high: float | None = None, *, above_low: bool = False, below_high: bool = False) -> Check:
    """A finite number in a range; an end is left out where `above_low` or `below_high` says so."""
    ends = [f"above {low}" if above_low else f"of {low} or more"]
    if high is not None:
        ends.append(f"below {high}" if below_high else f"up to {high}")
    accepted = f"a number {' and '.join(ends)}"

    def fits(value: float) -> bool:
        low_fits = value > low if above_low else value >= low
        high_fits = high is None or (value < high if below_high else value <= high)
        return math.isfinite(value) and low_fits and high_fits

    def of_value(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 and fits(value):
            return float(value)
        raise Unacceptable(f"use {accepted}")

    def of_text(text: str) -> float:
        try:
            return of_value(float(text))
        except ValueError as error:
            raise Unacceptable(f"use {accepted}") from error

    return Check(accepted, of_value, of_text)


def seconds(*, above_zero: bool = False) -> Check:
    """A span of time, from 0 or above it."""
    return number(0, MAX_SECONDS, above_low=above_zero)


def choice(*words: str, also: dict[str, str] | None = None, because: str = "") -> Check:
    """One of some words, in any case; `also` maps further spellings to them, `because` says why there are no more.

    YAML reads a bare `on` and `off` as true and false: where these are among the words, they are meant.
    """
    spellings = {**{word: word for word in words}, **(also or {})}
    accepted = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    accepted += f" ({because})" if because else ""

    def of_text(text: str) -> str:
        word = text.strip().lower()
        if word in spellings:
            return spellings[word]
        raise Unacceptable(f"use {accepted}")

    def of_value(value: object) -> str:
        if isinstance(value, bool):
            return of_text("on" if value else "off")
        if isinstance(value, str):
            return of_text(value)
        raise Unacceptable(f"use {accepted}")

    return Check(accepted, of_value, of_text)


def text(what: str = "a text", *, pattern: str | None = None, blank: bool = False) -> Check:
    """A text without control characters, in the form of a pattern where there is one; empty only where `blank`."""

    def of_text(value: str) -> str:
        if blank and not value:
            return value
        if value.strip() and value.isprintable() and (pattern is None or re.fullmatch(pattern, value)):
            return value
        raise Unacceptable(f"use {what}")

    def of_value(value: object) -> str:
        if isinstance(value, str):
            return of_text(value)
        raise Unacceptable(f"use {what}")

    return Check(what, of_value, of_text)


def texts(one: Check, *, separator: str) -> Check:
    """A list of such texts; in the environment one text with separators. Empty items are dropped there."""

    def of_value(value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise Unacceptable("use a list")
        found, wrong = [], []
        for item in value:
            try:
                found.append(str(one.of_value(item)))
            except Unacceptable:
                wrong.append(shown(item))
        if wrong:
            items = f"item{'s' * (len(wrong) > 1)} {', '.join(wrong)}"
            raise Unacceptable(f"use a list, and for its {items} {one.accepted}")
        return tuple(found)

    def of_text(value: str) -> tuple[str, ...]:
        return of_value([item.strip() for item in value.split(separator) if item.strip()])

    return Check(f"a list, each item {one.accepted}", of_value, of_text)


def either(*checks: Check) -> Check:
    """What the first of some checks that is content makes of a value."""
    accepted = ", or ".join(check.accepted for check in checks)

    def first(read: Iterable[Callable[[], object]]) -> object:
        for one in read:
            with suppress(Unacceptable):
                return one()
        raise Unacceptable(f"use {accepted}")

    def of_value(value: object) -> object:
        return first(partial(check.of_value, value) for check in checks)

    def of_text(value: str) -> object:
        return first(partial(check.of_text, value) for check in checks)

    return Check(accepted, of_value, of_text)


def not_served(why: str) -> Check:
    """Nothing but the empty text: what it would ask for cannot be had, and silence would be worse."""

    def of_value(value: object) -> str:
        if value == "":
            return ""
        raise Unacceptable(why)

    return Check("nothing yet", of_value, of_value)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`; an IPv6 host stands in brackets; the host may be empty.

    Raises:
        Unacceptable: it is no such thing.
    """
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > MAX_PORT:
        raise Unacceptable(f"use host:port with a port from 0 to {MAX_PORT}")
    if (":" in host) != bracketed or not re.fullmatch(r"[A-Za-z0-9._:%-]*", host):
        raise Unacceptable("use host:port, with an IPv6 host in brackets: [::1]:8001")
    return host, int(port)


def address(*, any_host: bool = False) -> Check:
    """`host:port`, kept as text; without a host where `any_host`, which then means every address of this host."""

    def of_text(value: str) -> str:
        host, port = split_address(value.strip())
        if not any_host and not (host and port):
            raise Unacceptable("use host:port, both of them")
        return value.strip()

    def of_value(value: object) -> str:
        if isinstance(value, str):
            return of_text(value)
        raise Unacceptable("use host:port")

    return Check("host:port", of_value, of_text)


def octal_mode() -> Check:
    """A file mode in octal digits, at most 777; a bare 600 in YAML is a number, and which one nobody can tell."""
    return text('a mode in octal digits as a quoted text, at most "777", such as "600"', pattern="0?[0-7]{1,3}")


PORT = integer(0, MAX_PORT)
BYTES = integer(1, 2**31 - 1)
PATH = text("a path")
HOST = text("a host name or address", pattern=r"[A-Za-z0-9._:%-]+")
NAME = text(
    "a name of letters, digits, '.', '_' and '-', at most 64 of them", pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
)
