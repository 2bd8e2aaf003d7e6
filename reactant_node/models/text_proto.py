"""Protobuf's text format, read without a message definition: fields to lists of values.

Covers what configuration files are written in: scalar fields, messages in braces or angle brackets, bracketed lists,
adjacent strings, comments, optional separators. Extensions and Any are refused. Which fields exist and what
their values mean is up to the caller.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable


class Symbol(str):
    """An unquoted word: an enum value, `true` or `false`."""

    __slots__ = ()


Value = int | float | str | Symbol | dict[str, list["Value"]]
Message = dict[str, list[Value]]
"""Every field holds a list: the format does not show which fields are repeated."""

_TOKEN = re.compile(
    r"""(?P<skip>(?:\s|\#[^\n]*)+)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE,
)

_CLOSING = {"{": "}", "<": ">"}
_MAX_DEPTH = 100
"""Protobuf's own limit for nested messages."""


class TextFormatError(ValueError):
    """The text is not in the format; names the line."""


def parse(text: str) -> Message:
    """Read a whole text.

    Raises:
        TextFormatError: names the line and what was found there.
    """
    parser = _Parser(text)
    message = parser.message(end="", depth=0)
    parser.expect("")
    return message


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._kind = ""
        self._lexeme = ""
        self._next()

    def message(self, end: str, depth: int) -> Message:
        if depth > _MAX_DEPTH:
            raise self._error("messages are nested too deeply")
        fields: Message = {}
        while self._lexeme != end:
            name = self._take("word", "a field name")
            fields.setdefault(name, []).extend(self._field(depth))
            if self._lexeme in (",", ";"):
                self._next()
        return fields

    def expect(self, mark: str) -> None:
        if self._lexeme != mark:
            raise self._error(f"expected {mark!r}" if mark else "expected the end")
        self._next()

    def _field(self, depth: int) -> list[Value]:
        if self._lexeme == ":":
            self._next()
        elif self._lexeme not in ("{", "<", "["):
            raise self._error("expected ':' or '{'")
        return self._list(depth) if self._lexeme == "[" else [self._value(depth)]

    def _list(self, depth: int) -> list[Value]:
        self.expect("[")
        values: list[Value] = []
        while self._lexeme != "]":
            values.append(self._value(depth))
            if self._lexeme != "]":
                self.expect(",")
        self.expect("]")
        return values

    def _value(self, depth: int) -> Value:
        if self._kind == "mark" and (closing := _CLOSING.get(self._lexeme)):
            self._next()
            message = self.message(closing, depth + 1)
            self.expect(closing)
            return message
        scalars: dict[str, Callable[[], Value]] = {"string": self._strings, "number": self._number, "word": self._word}
        if self._kind not in scalars:
            raise self._error("expected a value")
        return scalars[self._kind]()

    def _strings(self) -> str:
        parts = []
        while self._kind == "string":
            parts.append(self._unquoted())
            self._next()
        return "".join(parts)

    def _unquoted(self) -> str:
        try:
            return str(ast.literal_eval(self._lexeme))
        except (ValueError, SyntaxError) as error:
            raise self._error("bad escape in") from error

    def _number(self) -> int | float:
        token = self._take("number", "a number")
        if token.lower().lstrip("+-").startswith("0x"):
            return int(token, 16)
        try:
            return int(token, 10)
        except ValueError:
            return float(token.rstrip("fF"))

    def _word(self) -> Symbol:
        return Symbol(self._take("word", "a word"))

    def _take(self, kind: str, what: str) -> str:
        if self._kind != kind:
            raise self._error(f"expected {what}")
        token = self._lexeme
        self._next()
        return token

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._offset)
        if match is not None and match.lastgroup == "skip":
            self._offset = match.end()
            match = _TOKEN.match(self._text, self._offset)
        if match is None:
            self._kind, self._lexeme = "", self._text[self._offset : self._offset + 1]
            if self._lexeme:
                raise self._error("unexpected character")
            return
        self._kind, self._lexeme, self._offset = match.lastgroup or "", match.group(), match.end()

    def _error(self, what: str) -> TextFormatError:
        line = self._text.count("\n", 0, self._offset) + 1
        return TextFormatError(f"line {line}: {what}, found {self._lexeme or 'the end'!r}")
