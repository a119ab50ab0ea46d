"""Turns a statement's actions into edits of a resource's body, or reports every mistake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, cast

from mzplan.features.alter.sql.statements import Alter, At, Option, OptionChange, Value, point
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.model.resources import PropertyEdit
from mzplan.model.words import did_you_mean
from mzplan.schema.kinds import ResourceKind
from mzplan.schema.statement_options import SqlOption, StatementOptions
from mzplan.secrets.logins import has_login
from mzplan.secrets.references import is_reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The edits of a statement, each with its location; or only the statement's mistakes."""

    edits: tuple[PropertyEdit, ...] = ()
    locations: tuple[At, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def meaning_of(text: str, statement: Alter, address: Address, kind: ResourceKind) -> Meaning:
    """Return the edits that the actions request of a resource of this kind, or every mistake.

    MZ073 reports actions that don't fit the connection or contradict each other.
    """
    reader = _ClauseReader(text, statement, address, kind)
    mistakes = [*reader.type_errors()] or [*reader.unknown(), *reader.contradictions(), *reader.words()]
    if mistakes:
        return Meaning(diagnostics=tuple(mistakes))
    edits = tuple(reader.edit(action) for action in statement.actions)
    if reader.mistakes:
        return Meaning(diagnostics=tuple(reader.mistakes))
    locations = tuple((action.value or action.option).at for action in statement.actions)
    return Meaning(edits=edits, locations=locations)


def clear_locations(statement: Alter, kind: ResourceKind) -> tuple[At, ...]:
    """Return the locations of values that an excerpt may show, because they aren't secret."""
    options = StatementOptions(kind)
    return tuple(
        action.value.at
        for action in statement.actions
        if action.value is not None
        and not action.value.secret
        and not action.value.word
        and (option := options.find(action.option.text, action.option.key)) is not None
        and not kind.is_sensitive(option.path)
        and not has_login(action.value.value)
        and not action.value.secret
    )


def type_name(type_: str) -> str:
    """Return a type as statements write it: `SSH TUNNEL`."""
    return type_.replace("-", " ").upper()


class _ClauseReader:
    def __init__(self, text: str, statement: Alter, address: Address, kind: ResourceKind):
        self.text, self.statement, self.address, self.kind = text, statement, address, kind
        self.options = StatementOptions(kind)
        self.shown = clear_locations(statement, kind)
        # Words for an option that takes none may be a secret whose quotes were forgotten.
        self.hidden = tuple(
            action.value.at
            for action in statement.actions
            if _is_word(action.value)
            and not ((option := self.option(action)) and (_is_name(option) or _choices(option)))
        )
        self.mistakes: list[Diagnostic] = []

    def point(self, at: At, code: str, summary: str, detail: str, hint: str) -> Diagnostic:
        return point(
            self.text,
            at,
            code,
            summary,
            detail,
            hint,
            shown=self.shown,
            hidden=self.hidden,
            address=self.address,
        )

    def type_errors(self) -> Iterator[Diagnostic]:
        wanted, actual = self.statement.as_type, type_name(self.kind.type)
        if wanted is not None and wanted.text.replace("_", " ") != actual:
            detail = f"{self.address} is of type {actual}."
            yield self.point(wanted.at, "MZ073", "Another type of connection", detail, f"write AS {actual}.")

    def option(self, action: OptionChange) -> SqlOption | None:
        return self.options.find(action.option.text, action.option.key)

    def unknown(self) -> Iterator[Diagnostic]:
        names = self.options.names
        for action in self.statement.actions:
            if self.option(action) is not None:
                continue
            text = f"{action.option.text} {action.value.value}".upper() if _is_word(action.value) else ""
            start = next((n for n in sorted(names, key=len, reverse=True) if _begins(action.option, n)), "")
            if text in self.options.single:
                summary, detail, hint = f"{text} needs a value", "", f"write SET {text} = …"
            elif start and action.value is not None:
                # The words after it aren't part of the option, and may be a secret.
                summary, detail, hint = "A text without quotes", "", f"write SET {start} = 'text'."
            else:
                name = action.option.name
                summary = f"Unknown option {name}"
                of = f"{self.address.kind} of type {type_name(self.kind.type)}"
                detail = f"Options of a {of} are: {', '.join(names)}."
                hint = did_you_mean(name, names) or "use one of these."
            yield self.point(action.option.at, "MZ073", summary, detail, hint)

    def words(self) -> Iterator[Diagnostic]:
        """Yield MZ072 for identifiers where an option doesn't take a name."""
        for action in self.statement.actions:
            value, option = action.value, self.option(action)
            if value is None or not value.word or option is None or _is_name(option) or _choices(option):
                continue
            at, quoted = value.at, 'As in SQL, "…" is a name.' if value.quoted else ""
            summary = "A text in double quotes" if value.quoted else "A text without quotes"
            hint = "write texts in single quotes: 'text'."
            yield replace(self.point(at, "MZ072", summary, quoted, hint), exit_code=ExitCode.USAGE)

    def contradictions(self) -> Iterator[Diagnostic]:
        """Yield errors for repeated options, and for contradictory options of one property."""
        first: dict[tuple[str, ...], OptionChange] = {}
        for action in self.statement.actions:
            option = self.option(action)
            path = option.path if option else (action.option.name,)
            earlier = first.setdefault(path, action)
            if earlier is action:
                continue
            name, other = action.option.name, earlier.option.name
            if name == other:
                summary = f"The option {name} appears twice"
                detail = f"One action is {earlier.verb}, another {action.verb}; only one can apply."
            elif earlier.verb != "SET" and action.verb != "SET":
                continue  # both are dropped
            else:
                summary = f"{other} and {name} can't be combined"
                detail = f"Both set `{'.'.join(path)}`: setting one of them already drops the other."
            yield self.point(action.option.at, "MZ073", summary, detail, "leave one of the two out.")

    def edit(self, action: OptionChange) -> PropertyEdit:
        option = self.option(action)
        assert option is not None  # `unknown` has checked this
        if action.value is None:
            return PropertyEdit(path=option.path, remove=True)
        return PropertyEdit(path=option.path, value=self._value(option, action.value))

    def _value(self, option: SqlOption, literal: Value) -> Any:
        """Return the value as the property's type. The schema check finds values that don't fit."""
        value = literal.value
        if literal.word:
            return _name_or_choice(option, literal)
        if literal.secret and not is_reference(value):
            self.mistakes.append(
                self.point(
                    literal.at,
                    "MZ016",
                    f"Secret written out for {option.name}",
                    "SECRET needs a reference: files and commands are shared and kept in history.",
                    "write SECRET '${env:NAME}' or SECRET '${file:PATH}', and change the secret.",
                )
            )
        types = option.schema.get("type")
        if types == "array":
            if option.sets_one_item and isinstance(value, list):
                hint = f"name several with {option.schema['x-sql']}."
                self.mistakes.append(
                    self.point(literal.at, "MZ073", f"{option.name} takes one value", "This is a list.", hint)
                )
            return value if isinstance(value, list) else [value]
        if isinstance(value, str):
            if types == "integer" and value.strip().removeprefix("-").isdecimal() and len(value) < 18:
                return int(value)
            if types == "boolean" and value.lower() in ("true", "false"):
                return value.lower() == "true"
        return value


def _is_word(value: Value | None) -> TypeGuard[Value]:
    return value is not None and value.word


def _begins(option: Option, name: str) -> bool:
    return option.key is None and option.text.startswith(f"{name} ")


def _is_name(option: SqlOption) -> bool:
    """Whether the option's value is the name of a resource."""
    return "x-reference" in option.schema


def _choices(option: SqlOption) -> list[Any]:
    return cast("list[Any]", option.schema.get("enum", []))


def _name_or_choice(option: SqlOption, literal: Value) -> Any:
    """Return the value as SQL reads it.

    A name without quotes is in lower case. For an option with fixed choices, returns the choice that is equal
    apart from case.
    """
    if literal.quoted or not isinstance(literal.value, str):
        return literal.value
    matching = (choice for choice in _choices(option) if str(choice).lower() == literal.value.lower())
    return literal.value.lower() if _is_name(option) else next(matching, literal.value)
