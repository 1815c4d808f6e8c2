"""The words, names, texts, numbers and symbols of a statement.

Invariant: every character of the statement belongs to a token, to white space or to a comment. A text has the meaning
that it has in Hive (BaseSemanticAnalyzer.unescapeSQLString), except that an escape sequence without a meaning, which
Hive reads as its last character, is an error: the pattern 't\\d+' would otherwise match `td` and not `t1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from ingestd.errors import ConfigError

_SKIPPED = re.compile(r"\s+|--[^\n]*|/\*.*?\*/", re.DOTALL)
# The quotation marks that may end a text, by the one that begins it. Word processors turn ' into the others.
_QUOTES = {"'": "'", '"': '"', "‘": "’‘", "’": "’", "“": "”“", "”": "”"}
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "'": "'", '"': '"', "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "\\": "\\"}


class Kind(Enum):
    """What a token is."""

    WORD = auto()
    QUOTED_NAME = auto()
    STRING = auto()
    NUMBER = auto()
    SYMBOL = auto()
    END = auto()


_PATTERNS = {
    Kind.WORD: re.compile(r"[0-9]*[A-Za-z_][A-Za-z0-9_]*"),
    Kind.NUMBER: re.compile(r"[0-9]+"),
    Kind.QUOTED_NAME: re.compile(r"`([A-Za-z0-9_]+)`"),
    Kind.SYMBOL: re.compile(r"[.,=();]"),
}


@dataclass(frozen=True, slots=True)
class Token:
    """A part of a statement. `text` is a text without its quotation marks and escape sequences."""

    kind: Kind
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        """Return the token as an error names it."""
        return "the end" if self.kind is Kind.END else f"{self.text!r}"


def error_at(token: Token, what: str, hint: str = "") -> ConfigError:
    """Return the error of a token."""
    return ConfigError(what, where=f"line {token.line}, column {token.column} of the statement", hint=hint)


def tokens(text: str) -> list[Token]:
    """Return the tokens, of which the last one is END. Raises ConfigError."""
    return list(_tokens(text))


def quoted(text: str) -> str:
    """Return the literal of a text."""
    special = {value: key for key, value in _ESCAPED.items() if key != '"'}
    return "'" + "".join(f"\\{special[character]}" if character in special else character for character in text) + "'"


def named(name: str) -> str:
    """Return a name as it is written: in backticks if it would be a number."""
    return f"`{name}`" if name.isdigit() else name


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while True:
        while skipped := _SKIPPED.match(text, at):
            at = skipped.end()
        place = (text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1)
        if at == len(text):
            yield Token(Kind.END, "", *place)
            return
        if text[at] in _QUOTES:
            content, at = _literal(text, at, Token(Kind.STRING, text[at], *place))
            yield Token(Kind.STRING, content, *place)
            continue
        kind, match = next((candidate for candidate in _matches(text, at) if candidate[1]), (Kind.END, None))
        if match is None:
            raise error_at(Token(kind, text[at], *place), f"the character {text[at]!r} is not allowed here")
        yield Token(kind, match[match.lastindex or 0], *place)
        at = match.end()


def _matches(text: str, at: int) -> Iterator[tuple[Kind, re.Match[str] | None]]:
    for kind, pattern in _PATTERNS.items():
        yield kind, pattern.match(text, at)


def _literal(text: str, begin: int, token: Token) -> tuple[str, int]:
    """Return the content of the text that begins at `begin`, and where the rest of the statement begins."""
    ends = _QUOTES[text[begin]]
    at, parts = begin + 1, []
    while at < len(text) and text[at] not in ends:
        match = _ESCAPE.match(text, at) if text[at] == "\\" else None
        if match is None:
            parts.append(text[at])
            at += 1
            continue
        parts.append(_unescaped(match[1], token))
        at = match.end()
    if at == len(text):
        raise error_at(token, "the text has no closing quotation mark", f"add {ends[0]}")
    return "".join(parts), at + 1


def _unescaped(escape: str, token: Token) -> str:
    if len(escape) > 1:
        return chr(int(escape[1:], 16) if escape[0] == "u" else int(escape, 8))
    if escape not in _ESCAPED:
        raise error_at(
            token, f"the text contains \\{escape}, which has no meaning in a statement", f"write \\\\{escape}"
        )
    return _ESCAPED[escape]
