"""Parses a text into frozen statements. The only module that imports lark."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mzplan.features.alter.sql.statements import (
    Alter,
    At,
    Name,
    Option,
    OptionChange,
    Rename,
    RotateKeys,
    SetConnection,
    Statement,
    ValidateConnection,
    Value,
    masked_unparsable,
    point,
)
from mzplan.model.address import Kind
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.words import did_you_mean, safe

if TYPE_CHECKING:
    from lark import Lark, Token, Tree
    from lark.exceptions import UnexpectedInput

MAX_LENGTH = 64 * 1024
_MAX_DIGITS = 18  # of a number that fits 64 bits
# The grammar's terminals, for people; keywords stand for themselves.
_TERMINALS = {
    "WORD": "a name",
    "QUOTED": "",
    "TEXT": "a 'text'",
    "NUMBER": "a number",
    "SECRET": "SECRET '${env:NAME}'",
    "LPAR": "(",
    "RPAR": ")",
    "LSQB": "",
    "RSQB": "]",
    "COMMA": "a comma",
    "EQUAL": "=",
    "SEMICOLON": "",
    "$END": "the end of the statement",
}


def parse_statements(text: str) -> tuple[Statement, ...]:
    """Parse one or more statements with `;` between them; VALIDATE stands alone.

    Raises MzplanError MZ072 (exit 64), which points at the mistake.
    """
    from lark.exceptions import UnexpectedInput

    if len(text) > MAX_LENGTH:
        raise _error(
            text, At(0, 1), "Too long", f"Statements may have {MAX_LENGTH} characters.", "split them."
        )
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as problem:
        raise _explain(text, problem) from None
    reader = _StatementReader(text)
    statements = tuple(reader.statement(cast("Tree[Token]", child)) for child in tree.children)
    if not statements:
        at = len(text.rstrip())
        raise _error(
            text, At(at, at + 1), "The statement ends too early", "There is no statement.", _syntax_hint(text)
        )
    checks = [statement for statement in statements if isinstance(statement, ValidateConnection)]
    if checks and len(statements) > 1:
        detail = "Several statements are one transaction, and VALIDATE changes nothing."
        raise _error(text, checks[0].name.at, "VALIDATE must stand alone", detail, "run it by itself.")
    return statements


@cache
def _parser() -> Lark:
    from lark import Lark

    grammar = (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=False)


class _StatementReader:
    """Turns the parse tree of a text into statements."""

    def __init__(self, text: str):
        self.text = text

    def statement(self, tree: Tree[Token]) -> Statement:
        names = [self._name(t) for t in _trees(tree, "name")]
        verb, _, kind_name = str(tree.data).partition("_")
        kind = cast(Kind, kind_name)
        if_exists = bool(_trees(tree, "if_exists"))
        match verb:
            case "alter":
                types = _trees(tree, "as_type")
                alter = Alter(
                    kind=kind,
                    name=names[0],
                    if_exists=if_exists,
                    as_type=self._words(_trees(types[0], "words")[0]) if types else None,
                    actions=tuple(a for t in _trees(tree, "set", "drop", "reset") for a in self._actions(t)),
                    validate=_validate(tree),
                )
                return _set_connection(alter) or alter
            case "rotate":
                return RotateKeys(name=names[0], if_exists=if_exists)
            case "rename":
                return Rename(kind=kind, name=names[0], if_exists=if_exists, new=names[1])
            case _:
                return ValidateConnection(name=names[0])

    def _name(self, tree: Tree[Token]) -> Name:
        # As in SQL, a name without quotes is in lower case.
        token = _tokens(tree)[0]
        text = token[1:-1] if token.startswith('"') else token.lower()
        return Name(text=str(text), at=_at(token))

    def _words(self, tree: Tree[Token], key: Token | None = None) -> Option:
        words = _tokens(tree)
        at = At(_at(words[0]).start, _at(key or words[-1]).end)
        return Option(
            text=" ".join(word.upper() for word in words), at=at, key=str(key[1:-1]) if key else None
        )

    def _option(self, tree: Tree[Token]) -> Option:
        return self._words(_trees(tree, "words")[0], next(iter(_tokens(tree)), None))

    def _actions(self, tree: Tree[Token]) -> Iterable[OptionChange]:
        match tree.data:
            case "set":
                yield from map(self._setting, _trees(tree, "setting", "keyed", "last_word"))
            case "drop":
                yield from (OptionChange(verb="DROP", option=self._option(t)) for t in _trees(tree, "option"))
            case _:
                yield from (
                    OptionChange(verb="RESET", option=self._option(t)) for t in _trees(tree, "option")
                )

    def _setting(self, tree: Tree[Token]) -> OptionChange:
        """Read `OPTION = value`, `OPTION "key" = value`, or `OPTION word`."""
        (words,) = _trees(tree, "words")
        keys = _tokens(tree)
        if tree.data != "last_word":
            value = self._value(cast("Tree[Token]", tree.children[-1]))
            return OptionChange(verb="SET", option=self._words(words, next(iter(keys), None)), value=value)
        if not keys and len(words.children) == 1:
            end = _at(_tokens(words)[0]).end
            at = At(end, end + 1)
            raise _error(
                self.text, at, "The statement ends too early", "A value is missing.", _syntax_hint(self.text)
            )
        last = keys[0] if keys else cast("Token", words.children.pop())
        return OptionChange(verb="SET", option=self._words(words), value=_identifier(last))

    def _value(self, tree: Tree[Token]) -> Value:
        at = At(tree.meta.start_pos, tree.meta.end_pos)
        match tree.data:
            case "true" | "false":
                return Value(value=tree.data == "true", at=at)
            case "list":
                inner = [self._value(cast("Tree[Token]", t)) for t in tree.children]
                return Value(value=[entry.value for entry in inner], at=at)
            case "identifier":
                return _identifier(_tokens(tree)[0])
            case "number":
                return Value(value=self._number(_tokens(tree)[0]), at=at)
            case _:
                text = str(_tokens(tree)[-1])[1:-1].replace("''", "'")
                return Value(value=text, at=at, secret=tree.data == "secret")

    def _number(self, token: Token) -> int | float:
        if sum(char.isdigit() for char in token) > _MAX_DIGITS:
            raise _error(
                self.text,
                _at(token),
                "A number that is too long",
                f"A number may have {_MAX_DIGITS} digits.",
                "put it in quotes if it is text.",
            )
        return float(token) if "." in token else int(token)


def _set_connection(alter: Alter) -> SetConnection | None:
    """Return a statement that only changes a query's connection; None for any other."""
    value = alter.actions[0].value
    option = alter.actions[0].option
    if len(alter.actions) > 1 or alter.kind == "connection" or value is None or not value.word:
        return None
    if (option.text, option.key) != ("CONNECTION", None):
        return None
    name = value.value if value.quoted else value.value.lower()
    return SetConnection(
        kind=alter.kind,
        name=alter.name,
        if_exists=alter.if_exists,
        connection=Name(text=name, at=value.at),
        validate=alter.validate,
    )


def _identifier(token: Token) -> Value:
    quoted = token.startswith('"')
    return Value(value=str(token[1:-1] if quoted else token), at=_at(token), word=True, quoted=quoted)


def _validate(tree: Tree[Token]) -> bool | None:
    clauses = _trees(tree, "with_validate")
    return None if not clauses else all(token.type != "FALSE" for token in _tokens(clauses[0]))


def _trees(tree: Tree[Token], *names: str) -> list[Tree[Token]]:
    return [child for child in cast(list[Any], tree.children) if getattr(child, "data", None) in names]


def _tokens(tree: Tree[Token]) -> list[Token]:
    return [child for child in tree.children if isinstance(child, str)]


def _at(token: Token) -> At:
    start = cast(int, token.start_pos)
    return At(start, start + len(token))


def _explain(text: str, problem: UnexpectedInput) -> MzplanError:
    """Return MZ072 with the mistake at the location where the parser stopped."""
    # `accepts` has the terminals that can follow here; the other sets also have terminals for other contexts.
    sets = (getattr(problem, name, None) for name in ("accepts", "expected", "allowed"))
    expected = {str(name) for name in next(filter(None, sets), ())}
    token = getattr(problem, "token", None)
    end = len(text.rstrip())
    if token is not None and token.type == "$END":
        return _error(
            text, At(end, end + 1), "The statement ends too early", _expected(expected), _syntax_hint(text)
        )
    if token is not None and token.type == "SEMICOLON":
        return _error(
            text, _at(token), "The statement ends too early", _expected(expected), _syntax_hint(text)
        )
    start = problem.pos_in_stream or 0
    unexpected = str(token) if token is not None else text[start : start + 1]
    at = At(start, start + max(1, len(unexpected)))
    if unexpected == "'" or (unexpected == '"' and '"' not in text[start + 1 :]):
        hint = "close it; a quote inside a text is written twice: 'it''s'."
        return _error(text, at, "A quote that isn't closed", "", hint)
    if expected <= {"SEMICOLON", "$END"}:
        detail = "A statement ends here, and something follows."
        return _error(text, at, "More than one statement", detail, "write ; between two statements.")
    if unexpected == '"' or (token is not None and token.type == "QUOTED" and "TEXT" in expected):
        return _error(
            text,
            at,
            "A text in double quotes",
            'As in SQL, "…" is a name.',
            "write texts in single quotes: 'text'.",
        )
    if token is None and re.match(r"\w", text[start - 1 : start] or " "):
        begin = start - len(re.split(r"[\s,()='\";]", text[:start])[-1])
        at = At(begin, start + len(re.split(r"[\s,()'\";]", text[start:], maxsplit=1)[0]))
        hint = "write texts in single quotes: 'text'."
        return _error(text, at, "A text without quotes", "", hint)
    hint = did_you_mean(unexpected, sorted(expected - _TERMINALS.keys())) or _syntax_hint(text)
    shown = masked_unparsable(text)[start : start + len(unexpected)]
    shown = shown if shown == unexpected == safe(unexpected) and unexpected[0] not in "'\"" else ""
    return _error(text, at, f"Unexpected {shown}" if shown else "Unexpected text", _expected(expected), hint)


def _expected(expected: Iterable[str]) -> str:
    words = [_TERMINALS.get(name, name) for name in sorted(expected, key=lambda n: (n in _TERMINALS, n))]
    words = [word for word in words if word]
    if not words:
        return ""
    return f"Expected {', '.join(words[:-1])} or {words[-1]}." if len(words) > 1 else f"Expected {words[0]}."


def _syntax_hint(text: str) -> str:
    """Return the syntax of the kind of statement that was probably meant."""
    words = text.upper().split()[:2]
    match words:
        case ["ALTER", "SOURCE" | "SINK"]:
            return f"write: {' '.join(words)} name SET CONNECTION other, or RENAME TO new."
        case ["VALIDATE", *_]:
            return "write: VALIDATE CONNECTION name."
        case ["ALTER", "CONNECTION"]:
            return "write: ALTER CONNECTION name SET (OPTION = 'value', …), or DROP (OPTION, …)."
        case _:
            return "write ALTER CONNECTION …, ALTER SOURCE …, ALTER SINK … or VALIDATE CONNECTION …."


def _error(text: str, at: At, summary: str, detail: str, hint: str) -> MzplanError:
    return MzplanError(point(text, at, "MZ072", summary, detail, hint, shown=None, exit_code=ExitCode.USAGE))
