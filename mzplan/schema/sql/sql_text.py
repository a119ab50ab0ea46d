"""The text of a Spark SQL expression: the SQL for Spark, and sqlglot's tree, within bounds.

Two programs read an expression: sqlglot, with which mzplan checks it, and Spark, which runs it. If only one
of them took a part for a comment or for the end of a text, that part would run unchecked. So both get the
same text without comments, and only tokens that both read alike are allowed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

MAX_LENGTH = 10_000
# sqlglot's dialects, in the order to try. Databricks' dialect is Spark's with newer syntax (`payload:field`).
DIALECTS = ("spark", "databricks")
_MAX_DEPTH = 32  # brackets within brackets
# The most steps of sqlglot's parser: some for any text, and more for each token. It needs 2 steps for each
# token of ordinary expressions, but 2 to the power of the depth for STRUCT(STRUCT(…)).
_STEPS, _STEPS_OF_TOKEN = 2_000, 20
_TOKEN = re.compile(
    r"""
      (?P<space>(?:[ \t\n]|\r\n)+)
    | (?P<comment>--[^\n]*|/\*.*?\*/)
    | (?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)+`
                |[rR](?:'[^']*'|"[^"]*")|[xX]'[0-9A-Fa-f]*')
    | (?P<number>(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?(?:[LlSsYyFfDd]|[bB][dD])?(?![\w.]))
    | (?P<word>[A-Za-z_]\w*|(?!0[xX]|\d+[eE]\b)\d+[A-Za-z_]\w*)
    | (?P<signs>(?:(?!--|/\*)[-+*/%=<>!~&|^:])+)
    | (?P<open>[(\[])
    | (?P<close>[)\]])
    | [,.]
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
# One operator with the signs of its operand, or the end of nested types, as in MAP<STRING,ARRAY<INT>>.
_SIGNS = re.compile(r"(?:<=>|<=|>=|<>|!=|==|<<|\|\||::|->|=>|>+|[-+*/%=<&|^:])?[-+~!]*")
_TWO_WAYS = "can be read in two ways"
# Spark's names of functions whose position sqlglot doesn't record.
_NAMES_OF_CLASSES = {
    "ApproxQuantile": "percentile_approx",
    "ArgMax": "max_by",
    "ArgMin": "min_by",
    "Ceil": "ceil",
    "Decode": "decode",
    "DecodeCase": "decode",
    "Floor": "floor",
    "GroupConcat": "listagg",
    "If": "if",
    "Overlay": "overlay",
    "Quantile": "percentile",
    "RegrAvgx": "regr_avgx",
    "RegrAvgy": "regr_avgy",
    "RegrSxx": "regr_sxx",
    "RegrSxy": "regr_sxy",
    "RegrSyy": "regr_syy",
    "StrPosition": "position",
    "Substring": "substring",
    "Transform": "transform",
    "Trim": "trim",
}
_PLAIN_CALLS = frozenset(["CHAR", "CHR", "INITCAP", "NORMALIZE"])

# Words of SQL that need backquotes as the name of a collection.
_OWN_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        alter and anti any as between by case cluster create cross current_date current_time
        current_timestamp current_user describe distinct distribute drop else end except exists false fetch
        for from full glob grant group having ilike in inner insert intersect into is join lateral left like
        limit localtimestamp minus natural not notnull null offset on or order outer partitioned_by pivot
        qualify regexp returning revoke right rlike rollback select semi serdeproperties session_user setminus
        sort table tablesample then true uncache union unpivot user using values when where window with xor
        """,
    )
)


class SqlTextError(ValueError):
    """A text that isn't allowed.

    - `problem`: the reason, as a clause for messages.
    - `offset`: the position of the character, from 0.
    """

    def __init__(self, problem: str, offset: int = 0):
        super().__init__(problem)
        self.problem, self.offset = problem, offset


@dataclass(frozen=True, slots=True)
class BareText:
    """A text with blanks in place of its comments, so that each character keeps its position.

    `quoted`: the start and end of each text and name in quotes.
    """

    sql: str
    quoted: frozenset[tuple[int, int]]


def bare(text: str) -> BareText:
    """Return the text without its comments.

    Raises SqlTextError for anything that sqlglot and Spark might read differently.
    """
    if len(text) > MAX_LENGTH:
        raise SqlTextError(f"it is longer than {MAX_LENGTH:,} characters")
    parts: list[str] = []
    quoted: set[tuple[int, int]] = set()
    end = depth = 0
    # For each open bracket, whether it has an arrow: Spark's parser never ends for x -> x -> …
    has_arrow = [False]
    while end < len(text):
        token = _TOKEN.match(text, end)
        if token is None:
            raise SqlTextError(_unreadable(text[end:]), end)
        kind, lexeme = token.lastgroup, token.group()
        if kind == "comment":
            _check_comment(lexeme, end)
            lexeme = re.sub(r"[^\n]", " ", lexeme)
        elif kind == "signs" and not _SIGNS.fullmatch(lexeme):
            raise SqlTextError(f"`{lexeme}` {_TWO_WAYS}: put a blank between operators", end)
        elif kind == "quoted":
            quoted.add(token.span())
        elif kind == "open":
            has_arrow.append(False)
        elif kind == "close":
            has_arrow = has_arrow[:-1] or [False]
        elif lexeme == ",":
            has_arrow[-1] = False
        if kind == "signs" and lexeme.startswith("->"):
            if has_arrow[-1]:
                raise SqlTextError("a function can't be the result of a function", end)
            has_arrow[-1] = True
        depth += (kind == "open") - (kind == "close")
        if depth > _MAX_DEPTH:
            raise SqlTextError("it is nested too deep", end)
        parts.append(lexeme)
        end = token.end()
    return BareText("".join(parts), frozenset(quoted))


@dataclass(frozen=True, slots=True)
class Token:
    """A token of bare text.

    - `kind`: `word`, `quoted`, …; "" for a comma or a point.
    - `start`: its position in the text.
    - `depth`: the number of brackets around it.
    """

    kind: str
    text: str
    start: int
    depth: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """Return the word in lower case; "" for another kind of token, or inside brackets."""
        return self.text.lower() if self.kind == "word" and self.depth == 0 else ""

    @property
    def name(self) -> str:
        """Return the name in lower case, as Spark compares names; "" for another kind of token."""
        if self.kind == "quoted" and self.text.startswith("`"):
            return self.text[1:-1].replace("``", "`").lower()
        return self.text.lower() if self.kind == "word" else ""


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a text without comments (see `bare`). Skips whitespace."""
    depth = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup or ""
        depth -= kind == "close"
        if kind != "space":
            yield Token(kind, token.group(), token.start(), depth)
        depth += kind == "open"


def collection_name(name: str) -> str:
    """Return the name of a collection as SQL: in backquotes if it is a word of SQL."""
    return f"`{name}`" if name in _OWN_WORDS else name


def plain_sql(text: str) -> str:
    """Return a query without comments and with one blank between tokens; unchanged if it is invalid."""
    try:
        read = bare(text.rstrip().removesuffix(";"))
    except SqlTextError:
        return text
    return " ".join(token.text for token in tokens(read.sql))


def _check_comment(comment: str, offset: int) -> None:
    if comment.startswith("/*+"):
        raise SqlTextError("a hint is not part of an expression", offset)
    if "/*" in comment[2:] or comment.rstrip("\r").endswith("\\") or "\r" in comment.replace("\r\n", "")[:-1]:
        # A comment within a comment, a comment that continues on the next line, or a lone carriage return.
        raise SqlTextError(f"this comment {_TWO_WAYS}: remove or rewrite it", offset)


def _unreadable(rest: str) -> str:
    """Return why no token begins here."""
    if rest[0] in "'\"`":
        return "a quote is not closed" if rest[:2] != "``" else "a name is empty"
    if rest.startswith("/*"):
        return "a comment is not closed"
    if rest[0] == ";":
        return "it is more than one expression"
    if rest[0].isalnum():
        word = re.match(r"[\w.]*", rest)
        shown = word.group()[:60] if word else rest[0]
        return f"{shown!r} {_TWO_WAYS}: write a name in backquotes"
    return f"{rest[0]!r} can't stand outside of quotes"


def trees(prefix: str, text: BareText, dialect: str) -> list[Any]:
    """Return sqlglot's trees of a statement that consists of the prefix and the text.

    Raises SqlTextError, sqlglot's ParseError, and any other error that sqlglot raises for unexpected text.
    """
    from sqlglot import TokenType
    from sqlglot.dialects.dialect import Dialect

    sql = prefix + text.sql
    spoken: Any = Dialect.get_or_raise(dialect)
    tokens = spoken.tokenize(sql)
    for token, after in pairwise(tokens):
        if token.token_type == TokenType.WINDOW and after.token_type == TokenType.L_PAREN:
            token.token_type = TokenType.VAR  # a function; sqlglot would read GROUP BY window(…) as a clause
    odd = text.quoted - {(token.start - len(prefix), token.end + 1 - len(prefix)) for token in tokens}
    if odd:
        start, end = min(odd)
        raise SqlTextError(f"{text.sql[start:end][:60]} {_TWO_WAYS}", start)
    # The limit is on the dialect object, because sqlglot makes further parsers from it, such as for types.
    spoken.parser_class, spoken.steps = _bounded(dialect), _STEPS + _STEPS_OF_TOKEN * len(tokens)
    statements: list[Any] = spoken.parser().parse(tokens, sql)
    return statements


def read_trees(prefix: str, text: BareText, read: Callable[[list[Any]], Any]) -> Any:
    """Parse a statement with sqlglot, pass its trees to `read`, and return the result.

    The statement consists of the prefix and the text. Tries each of DIALECTS until one works. Raises
    SqlTextError if none does.
    """
    from sqlglot import errors

    problem: SqlTextError | None = None
    for dialect in DIALECTS:
        try:
            return read(trees(prefix, text, dialect))
        except SqlTextError:
            raise
        except RecursionError:
            raise SqlTextError("it is nested too deep") from None
        except errors.ParseError as failure:
            problem = problem or _syntax_error(failure, prefix, text.sql)
        except errors.TokenError:
            problem = problem or SqlTextError("there is a character that SQL does not know")
        except Exception:  # sqlglot raises various errors for functions without their arguments: map(id)
            problem = problem or SqlTextError("a function is missing arguments")
    assert problem is not None, "there is a dialect"
    raise problem


def arguments_of(call: Any) -> list[Any]:
    """Return the arguments of a function call in sqlglot's tree, in the order of the text.

    sqlglot moves, wraps and adds arguments of the functions that it knows.
    """
    written = call.meta.get("arguments")
    if written is None:
        written = call.expressions if type(call).__name__ == "Anonymous" else call.iter_expressions()
    return list(written)


def function_name(node: Any, sql: str, prefix: int = 0) -> str:
    """Return the name of the function that a node calls, as written, in lower case.

    For other nodes, returns the name of sqlglot's class. sqlglot uses one class for several functions, so the
    name is read from the text, at the position that sqlglot records. `prefix`: see `trees`.
    """
    kind = type(node).__name__
    if kind in ("Identifier", "Column", "Literal") or "start" not in node.meta:
        return _NAMES_OF_CLASSES.get(kind, kind)
    start, end = (node.meta[at] - prefix for at in ("start", "end"))
    if not sql[end + 1 :].lstrip().startswith("("):
        return kind
    return sql[start : end + 1].strip("`").lower()


def _syntax_error(failure: Any, prefix: str, text: str) -> SqlTextError:
    problem = failure.errors[0] if failure.errors else {}
    line, column = problem.get("line") or 1, problem.get("col") or 0
    before = sum(len(part) + 1 for part in (prefix + text).split("\n")[: line - 1])
    highlight = problem.get("highlight") or ""
    offset = before + column - max(1, len(highlight)) - len(prefix)
    near = f" near {highlight!r}" if highlight.strip() else ""
    return SqlTextError(f"the syntax is wrong{near}", max(0, min(offset, len(text) - 1)))


@cache
def _bounded(dialect: str) -> Any:
    """Return sqlglot's parser class with a limit: the dialect's `steps` say how often it may advance.

    Calls of functions that sqlglot knows get their arguments as written; see `arguments_of`.
    """
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect

    base = Dialect.get_or_raise(dialect).parser_class
    logging.getLogger("sqlglot").disabled = True  # it logs the SQL

    def advance(self: Any, times: int = 1) -> None:
        self.dialect.steps -= 1
        if self.dialect.steps < 0:  # not a ParseError, after which sqlglot would try something else
            raise SqlTextError("it is nested too deep")
        base._advance(self, times)

    def validate(self: Any, call: Any, arguments: Any = None) -> Any:
        if arguments:
            call.meta["arguments"] = tuple(arguments)
        return base.validate_expression(self, call, arguments)

    # Spark compares in `struct(id = 1)`; sqlglot would read a field named id.
    fields = tuple(node for node in base.KEY_VALUE_DEFINITIONS if node is not exp.EQ)
    # Spark has no special syntax for these functions.
    parsers = {name: read for name, read in base.FUNCTION_PARSERS.items() if name not in _PLAIN_CALLS}
    own = {"_advance": advance, "validate_expression": validate, "KEY_VALUE_DEFINITIONS": fields}
    return type("Bounded", (base,), {**own, "FUNCTION_PARSERS": parsers})
