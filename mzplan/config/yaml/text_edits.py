"""Edits a resource in the text of its file: only the edited nodes change, byte for byte.

Each edit is a splice at the exact place of a node, in the existing style (block or flow, quotes,
indentation, line ends), so comments and order stay. Afterwards the module parses the new text, and refuses
the edit if it has another effect: more through an anchor, or less below an alias or a merge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any

import yaml

from mzplan.config.findings import LINE_BREAK, Findings, SourceFile
from mzplan.config.yaml.builder import Builder, StopError
from mzplan.config.yaml.events import ScalarError, resolve
from mzplan.config.yaml.positions import Entry, Node, compose, properties_before
from mzplan.model.resources import PropertyEdit, edited
from mzplan.schema.properties import value_at

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+-]*(?::[A-Za-z0-9_./@+-]+)*")
# Text in YAML 1.2, but another value in YAML 1.1: such text gets quotes.
_OLD_YAML = re.compile(r"(?i)yes|no|on|off|y|n|[0-9_:.-]+")
_BLANKS = re.compile(r"[ \t]*")
_REST = re.compile(r"[ \t]*(?:[ \t]#.*)?")  # of a line, behind a value
# Up to the comma after an entry of a flow collection, but not a comma in a comment.
_TO_COMMA = re.compile(r"(?:\s|(?<=\s)#[^\n\r]*+)*+,")
Splice = tuple[int, int, str]


class CantRewriteError(Exception):
    """The text is written in a way that makes the edit impossible. `path`: the property's path."""

    def __init__(self, path: tuple[str, ...], detail: str):
        super().__init__(detail)
        self.path, self.detail = path, detail


def rewrite(text: str, section: str, name: str, edits: Sequence[PropertyEdit]) -> str:
    """Return the text with the edits made in a resource's body. Raises CantRewriteError."""
    result = text
    for edit in edits:
        entry = compose(result, section, name)
        if entry is None or entry.value.kind != "map":
            raise CantRewriteError((), "the resource comes from an alias or a merge.")
        result = _EditedText(result, entry).edit(edit)
    _verify(text, result, section, name, edits)
    return result


def rename(text: str, section: str, name: str, new: str) -> str:
    """Return the text with another name for a resource. Raises CantRewriteError."""
    entry = compose(text, section, name)
    if entry is None or entry.key is None or entry.key.kind != "scalar":
        raise CantRewriteError((), "the resource comes from an alias or a merge.")
    key = entry.key
    result = text[: key.start] + scalar_text(new, key.style) + text[key.end :]
    old, renamed = _data(text), _data(result)
    wanted = {
        **old,
        section: {
            new if resource_name == name else resource_name: body
            for resource_name, body in old[section].items()
        },
    }
    if (
        renamed is None
        or len(wanted[section]) != len(old[section])
        or _canonical(wanted) != _canonical(renamed)
    ):
        raise CantRewriteError((), "its name is also used elsewhere in the file, or the new name is taken.")
    return result


def body_of(text: str, section: str, name: str) -> Any:
    """Return a resource's body as written, without variables filled in; None if there is none."""
    return value_at(_data(text), (section, name))


class _EditedText:
    """A text with the entry of a resource in it."""

    def __init__(self, text: str, resource: Entry):
        self.text, self.resource = text, resource

    def edit(self, edit: PropertyEdit) -> str:
        node, chain = self.resource.value, list[tuple[Node, Entry]]()
        for depth, key in enumerate(edit.path):
            entry = node.entry(key)
            if entry is None:
                return self.text if edit.remove else self._insert(node, edit.path[depth:], edit.value)
            chain.append((node, entry))
            if depth == len(edit.path) - 1:
                return self._remove(chain) if edit.remove else self._replace(entry, edit.value)
            if entry.value.kind == "alias":
                raise CantRewriteError(edit.path[: depth + 1], f"{key} is an alias of a value elsewhere.")
            if entry.value.kind == "scalar" and not entry.value.text and not edit.remove:
                below = edit.path[depth + 1 :]
                return self._splice([self._in_place_of(entry, _flow_map(below, edit.value, self._style))])
            if entry.value.kind != "map":
                raise CantRewriteError(edit.path[: depth + 1], f"{key} is not written as a mapping.")
            node = entry.value
        raise AssertionError("an edit has a path")

    # --- removing

    def _remove(self, chain: list[tuple[Node, Entry]]) -> str:
        # Also remove mappings that would be left empty, but never the resource itself.
        while len(chain) > 1 and len(chain[-1][0].entries) == 1:
            chain.pop()
        node, entry = chain[-1]
        index = node.entries.index(entry)
        if node.flow:
            return self._splice(self._flow_removal(node, index, index + 1))
        return self._splice([self._lines(entry.start, entry.value.end)])

    def _lines(self, start: int, end: int) -> Splice:
        """Return the whole lines of a part of the text, with the line break after them.

        At the end of the file, the part has the line break before them instead.
        """
        first, last = self._line_start(start), self._line_end(end)
        after = LINE_BREAK.match(self.text, last)
        if after is not None:
            return (first, after.end(), "")
        return (max(0, first - len(self._newline())), last, "") if first else (first, last, "")

    def _flow_removal(self, node: Node, first: int, last: int) -> list[Splice]:
        """Return the splices that remove the entries first … last - 1, and the commas that go with them.

        Entries on lines of their own are removed with their lines.
        """
        splices = []
        is_tail = last == len(node.entries) and self._comma(node.entries[-1].value.end) is None
        for entry in node.entries[first:last]:
            comma = self._comma(entry.value.end)
            end = entry.value.end if comma is None else comma + 1
            if self._has_own_lines(entry.start, end):
                splices.append(self._lines(entry.start, end))
                continue
            start, spaces = entry.start, _BLANKS.match(self.text, end)
            if comma is not None and spaces is not None:
                end = spaces.end()
            if is_tail and entry is node.entries[first]:
                start = len(self.text[:start].rstrip(" \t"))
            splices.append((start, end, ""))
        if first and is_tail:
            before = self._comma(node.entries[first - 1].value.end)
            assert before is not None  # between two entries
            splices.append((before, before + 1, ""))
        return splices

    def _flow_addition(self, node: Node, index: int, written: Sequence[str]) -> list[Splice]:
        """Return the splices that add entries to a flow collection, before this index or at the end."""
        if not node.entries:
            return [(node.start + 1, node.start + 1, ", ".join(written))]
        if not index:
            start = node.entries[0].start
            return [(start, start, "".join(f"{entry}, " for entry in written))]
        before = node.entries[index - 1]
        end, comma = before.value.end, self._comma(before.value.end)
        if not self._has_own_lines(before.start, end if comma is None else comma + 1):
            return [(end, end, "".join(f", {entry}" for entry in written))]
        at, indent = self._line_end(end), self.text[self._line_start(before.start) : before.start]
        lines = [f"{self._newline()}{indent}{entry}," for entry in written]
        text = "".join(lines) if comma is not None else "".join(lines)[:-1]
        return [(at, at, text), *([] if comma is not None else [(end, end, ",")])]

    def _comma(self, end: int) -> int | None:
        """Return the place of the comma after an entry of a flow collection; None without one."""
        match = _TO_COMMA.match(self.text, end)
        return match.end() - 1 if match else None

    def _has_own_lines(self, start: int, end: int) -> bool:
        """Return whether this part has its lines for itself, apart from a comment."""
        before = self.text[self._line_start(start) : start]
        return not before.strip() and _REST.fullmatch(self.text, end, self._line_end(end)) is not None

    # --- setting

    def _replace(self, entry: Entry, value: Any) -> str:
        node = entry.value
        if isinstance(value, list) and node.kind == "list" and value and node.entries:
            return self._splice(self._items(node, value))
        if isinstance(value, list):
            return self._splice([self._in_place_of(entry, _flow_list(value, self._style))])
        # Compare as JSON, because Python considers 1 and true equal.
        if node.kind == "scalar" and node.text != "" and _canonical(_value_of(node)) == _canonical(value):
            return self.text
        return self._splice([self._in_place_of(entry, scalar_text(value, node.style or self._style))])

    @property
    def _style(self) -> str:
        """Return the quotes for new text: `"` if all keys of the resource are quoted, as in JSON."""
        return '"' if self.resource.value.flow and _is_quoted(self.resource.value) else ""

    def _in_place_of(self, entry: Entry, written: str) -> Splice:
        node = entry.value
        before = properties_before(self.text, node) if node.kind != "alias" else ""
        anchor = "".join(f"{word} " for word in before.split() if word.startswith("&"))
        if node.kind in ("map", "list") and not node.flow and entry.key is not None:
            colon = self.text.index(":", entry.key.end)
            return (colon + 1, node.end, f" {anchor}{written}")
        space = "" if self.text[node.start - 1 : node.start].isspace() else " "
        is_item = entry.key is None
        return (node.start, node.end, f"{'' if is_item else space}{anchor}{written}")

    def _insert(self, node: Node, path: Sequence[str], value: Any) -> str:
        key, below = path[0], path[1:]
        if node.flow:
            style = self._style or ('"' if _is_quoted(node) else "")
            written = f"{scalar_text(key, style)}: {_flow_map(below, value, style)}"
            return self._splice(self._flow_addition(node, len(node.entries), [written]))
        column = node.entries[0].start - self._line_start(node.entries[0].start)
        step = max(1, column - (self.resource.start - self._line_start(self.resource.start)))
        lines, indent = [], column
        for inner in path[:-1]:
            lines.append(f"{' ' * indent}{scalar_text(inner, '')}:")
            indent += step if indent == column and node is self.resource.value else 2
        lines.append(f"{' ' * indent}{scalar_text(path[-1], '')}: {_flow_map((), value, '')}")
        at = self._line_end(node.entries[-1].value.end)
        return self._splice([(at, at, "".join(self._newline() + line for line in lines))])

    def _items(self, node: Node, wanted: list[Any]) -> list[Splice]:
        """Return the splices that change a list's items. Unchanged items keep their comments."""
        current = [_canonical(_value_of(entry.value)) for entry in node.entries]
        then = [_canonical(value) for value in wanted]
        style = node.entries[0].value.style or self._style
        splices: list[Splice] = []
        for operation, i, end, j, last in SequenceMatcher(None, current, then, autojunk=False).get_opcodes():
            if operation == "equal":
                continue
            common = min(end - i, last - j)
            splices += [
                self._in_place_of(entry, scalar_text(value, entry.value.style or self._style))
                for entry, value in zip(node.entries[i : i + common], wanted[j:last], strict=False)
            ]
            if i + common < end:
                splices += self._without_items(node, i + common, end)
            if j + common < last:
                splices += self._more_items(node, i + common, wanted[j + common : last], style)
        return splices

    def _without_items(self, node: Node, first: int, last: int) -> list[Splice]:
        if node.flow:
            return self._flow_removal(node, first, last)
        return [self._lines(node.entries[first].value.start, node.entries[last - 1].value.end)]

    def _more_items(self, node: Node, index: int, values: list[Any], style: str) -> list[Splice]:
        """Return the splices that add items before this index, or at the end."""
        written = [scalar_text(value, style) for value in values]
        entries = node.entries
        if node.flow:
            return self._flow_addition(node, index, written)
        start = self._line_start(entries[0].value.start)
        indent = self.text[start : self.text.rfind("-", start, entries[0].value.start)]
        if not indent.isspace() and indent:
            raise CantRewriteError((), "the list begins on the line of another value.")
        lines = [f"{indent}- {text}" for text in written]
        if index:
            at = self._line_end(entries[index - 1].value.end)
            return [(at, at, "".join(self._newline() + line for line in lines))]
        return [(start, start, "".join(line + self._newline() for line in lines))]

    # --- the text

    def _splice(self, splices: Iterable[Splice]) -> str:
        result = self.text
        for start, end, new in sorted(splices, reverse=True):
            result = result[:start] + new + result[end:]
        return result

    def _line_start(self, at: int) -> int:
        breaks = list(LINE_BREAK.finditer(self.text, 0, at))
        return breaks[-1].end() if breaks else 0

    def _line_end(self, at: int) -> int:
        match = LINE_BREAK.search(self.text, at)
        return match.start() if match else len(self.text)

    def _newline(self) -> str:
        """Return the line break of this file."""
        match = LINE_BREAK.search(self.text, self.resource.start) or LINE_BREAK.search(self.text)
        return match.group() if match else "\n"


def scalar_text(value: Any, style: str) -> str:
    """Return a value as YAML. `style`: `'` or `"` for these quotes, "" for quotes only if needed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return json.dumps(value)
    if style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    if style != '"' and _PLAIN.fullmatch(value) and not _OLD_YAML.fullmatch(value) and _is_text(value):
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())


def _flow_list(values: list[Any], style: str) -> str:
    return f"[{', '.join(scalar_text(value, style) for value in values)}]"


def _flow_map(path: Sequence[str], value: Any, style: str) -> str:
    if not path:
        return _flow_list(value, style) if isinstance(value, list) else scalar_text(value, style)
    return f"{{{scalar_text(path[0], style)}: {_flow_map(path[1:], value, style)}}}"


def _is_quoted(node: Node) -> bool:
    """Return whether all keys are in double quotes, as in JSON."""
    return bool(node.entries) and all(e.key is not None and e.key.style == '"' for e in node.entries)


def _is_text(value: str) -> bool:
    try:
        return isinstance(resolve(value), str)
    except ScalarError:
        return False


def _value_of(node: Node) -> Any:
    """Return a scalar's value; None for any other node."""
    if node.kind != "scalar":
        return None
    try:
        return node.text if node.style else resolve(node.text)
    except ScalarError:
        return None


def _verify(before: str, after: str, section: str, name: str, edits: Sequence[PropertyEdit]) -> None:
    """Raise CantRewriteError unless the new text differs from the old one by exactly these edits."""
    old, new = _data(before), _data(after)
    if new is None:
        raise CantRewriteError(edits[0].path, "another part of the file uses its anchor.")
    body = old[section][name]
    wanted = {**old, section: {**old[section], name: edited(body, edits)}}
    if _canonical(wanted) == _canonical(new):
        return
    for edit in edits:
        if _canonical(value_at(new[section].get(name), edit.path)) != _canonical(
            value_at(edited(body, edits), edit.path)
        ):
            raise CantRewriteError(edit.path, "it comes from an alias or a merge (`<<`), so others share it.")
    if _canonical({**new, section: {**new[section], name: None}}) != _canonical(
        {**old, section: {**old[section], name: None}}
    ):
        raise CantRewriteError(edits[0].path, "it has an anchor, so its aliases would also change.")
    raise CantRewriteError(edits[0].path, "the keys beside it come from a merge (`<<`) and would be lost.")


def _data(text: str) -> Any:
    builder = Builder(SourceFile("", ""), Findings())
    try:
        builder.build(text)
    except (yaml.YAMLError, StopError):
        return None
    return builder.document.data


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
