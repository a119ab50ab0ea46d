"""What a sink writes: its expressions, the columns that come out of them, its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.config.declared import Declared
from mzplan.config.findings import Findings, Path, listed, shown
from mzplan.model.address import Address
from mzplan.schema.columns import CHANGE, POSITION, DdlError
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of

if TYPE_CHECKING:
    from mzplan.schema.expressions import Parsed


def check_sink(resource: Declared, declared: Mapping[Address, Declared], findings: Findings) -> None:
    """`select`, `where`, `key` and `partition_by` of a sink whose body is right by its schema; and whether it
    can follow its source's deletes, where there are some."""
    body = resource.body
    _check_deletes(resource, declared.get(Address("source", body["from"])), findings)
    _check_loop(resource, declared, findings)
    if not any(key in body for key in ("select", "where", "key", "partition_by")):
        return
    source = declared.get(Address("source", body["from"]))
    check = _SinkCheck(resource, findings, column_names(source), keyed=bool(_keys(source)))
    outputs = check.select(body["select"]) if "select" in body else check.columns
    if "where" in body:
        check.where(body["where"])
    check.varying(body)
    if outputs is not None:
        check.written("key", "key", outputs)
        check.written("partition_by", "partition", outputs)
        check.partitions(outputs)


def _keys(source: Declared | None) -> tuple[str, ...]:
    """The key of a source's collection; empty where it has none, or that can't be known."""
    if source is None or source.type is None or not isinstance(source.body, dict):
        return ()
    return keys_of(source.type, source.body)


def _check_deletes(resource: Declared, source: Declared | None, findings: Findings) -> None:
    """MZ201 for a sink that only ever adds rows, below a collection whose rows change and go."""
    keys = _keys(source)
    if not keys or source is None or resource.type is None:
        return
    kind = resource_kind("sink", resource.type)
    needed: dict[str, list[Any]] | None = kind.schema.get("x-deletes")
    body = kind.with_defaults(resource.body)
    if needed is not None and all(body.get(name) in values for name, values in needed.items()):
        return
    detail = (
        f"{source.label} keeps the latest row of each key ({', '.join(keys)}): its rows are updated and "
        f"deleted. {resource.label} only adds rows to its target, and could not take any back."
    )
    if needed is None:
        hint = f"a sink of type {resource.type} can't follow them: use kafka, postgres or delta, with a key."
        path: Path = ("from",)
    else:
        wanted = ", ".join(f"{name}: {values[0]}" for name, values in needed.items())
        hint = f"write `{wanted}` and `key: [{', '.join(keys)}]`."
        path = next(((name,) for name in needed if name in resource.body), ("from",))
    findings.add(
        "MZ201",
        "A sink that only adds rows can't follow updates and deletes",
        detail,
        hint,
        location=resource.location(path),
    )


def _check_loop(resource: Declared, declared: Mapping[Address, Declared], findings: Findings) -> None:
    """MZ219 for a sink that writes what its source reads (`x-channel`)."""
    source = declared.get(Address("source", resource.body["from"]))
    if source is None or not isinstance(source.body, dict):
        return
    if resource.type is None or source.type != resource.type:
        return
    for name, schema in resource_kind("sink", resource.type).schema["properties"].items():
        written = resource.body.get(name)
        if "x-channel" not in schema or written is None or written != source.body.get(name):
            continue
        servers = schema["x-channel"]  # the property of the connection that lists them
        if not _meet(source, resource, servers, declared):
            continue
        findings.add(
            "MZ219",
            f"{resource.label} would feed itself",
            f"It writes to {name} {shown(str(written))}, which {source.label} reads, on the same {servers}: "
            "every row would come back and be written again, without end.",
            f"write to another {name}.",
            location=resource.location((name,)),
        )


def _meet(source: Declared, sink: Declared, servers: str, declared: Mapping[Address, Declared]) -> bool:
    """Whether both have the same connection, or one of the servers that its property lists in common."""
    names = [str(one.body.get("connection")) for one in (source, sink)]
    if names[0] == names[1]:
        return True
    found: list[set[str]] = []
    for name in names:
        link = declared.get(Address("connection", name))
        listed_ = link.body.get(servers) if link is not None and isinstance(link.body, dict) else None
        found.append({str(one).strip().lower() for one in listed_} if isinstance(listed_, list) else set())
    return bool(found[0] & found[1])


def column_names(source: Declared | None) -> list[str] | None:
    """The names of a source's columns; None when they can't be known."""
    if source is None or source.type is None or not isinstance(source.body, dict):
        return None
    try:
        return [column.name for column in columns_of(source.type, source.body)] or None
    except DdlError:
        return None


class _SinkCheck:
    def __init__(self, resource: Declared, findings: Findings, columns: list[str] | None, keyed: bool):
        self.resource, self.findings, self.columns = resource, findings, columns
        self.lower = {column.lower() for column in columns or ()} | {POSITION}
        self.own = {POSITION, CHANGE} if keyed else {POSITION}

    def select(self, items: list[str]) -> list[str] | None:
        """The columns that come out; None when they can't be known."""
        from mzplan.schema.expressions import parse_select  # most sinks have no expressions

        outputs: list[str] = []
        seen: dict[str, int] = {}
        complete = True
        for index, item in enumerate(items):
            path: Path = ("select", index)
            parsed = parse_select(item)
            if not self.parsed(parsed, path):
                complete = False
                continue
            self.known(parsed, path)
            names = self._names(parsed, item, path)
            complete = complete and names is not None
            for name in names or ():
                if name.lower() in seen:
                    self._twice(name, path)
                seen.setdefault(name.lower(), index)
                outputs.append(name)
        return outputs if complete else None

    def where(self, condition: str) -> None:
        from mzplan.schema.expressions import parse_where

        parsed = parse_where(condition)
        if self.parsed(parsed, ("where",)):
            self.known(parsed, ("where",))

    def varying(self, body: Mapping[str, Any]) -> None:
        """MZ216: below a keyed collection, what decides whether and where a row is in the target is the same
        each time: else the row could not be found when it is to go."""
        from mzplan.schema.expressions import parse_select, parse_where

        if CHANGE not in self.own:
            return
        key = {str(name).lower() for name in body.get("key", ())}
        found = [(("select", i), parse_select(item)) for i, item in enumerate(body.get("select", ()))]
        deciding: list[tuple[Path, Parsed]] = [
            (path, parsed) for path, parsed in found if parsed.name is not None and parsed.name.lower() in key
        ]
        if "where" in body:
            deciding.append((("where",), parse_where(body["where"])))
        for path, parsed in deciding:
            if parsed.varies is not None:
                what, offset = parsed.varies
                self.findings.add(
                    "MZ216",
                    "Whether a row is in the target changes without its data",
                    f"{self.resource.label}: {what} is another value each time. When a row of "
                    f"source.{body['from']} is updated or deleted, {path[0]} has to tell whether, and where, "
                    "its former state was written: such a row would stay in the target for ever.",
                    "compare columns of the row only; or let whoever reads the target look at the time "
                    "(a view, for instance).",
                    location=self.resource.location(path, offset=offset),
                )

    def parsed(self, parsed: Parsed, path: Path) -> bool:
        if not parsed.problem:
            return True
        self.findings.add(
            "MZ019",
            "Not a stateless Spark SQL expression",
            f"{self.resource.label}: {parsed.problem}.",
            "write an expression over the columns of one row.",
            location=self.resource.location(path, offset=parsed.offset),
        )
        return False

    def known(self, parsed: Parsed, path: Path) -> None:
        """Every column that is read exists."""
        if self.columns is None:
            return
        for name, offset in parsed.columns:
            if name.lower() not in self.lower:
                self.findings.add(
                    "MZ019",
                    f"Unknown column {shown(name)}",
                    f"source.{self.resource.body['from']} has the columns {listed(self.columns, 40)}.",
                    self.findings.did_you_mean(name, self.columns) or "use one of these.",
                    location=self.resource.location(path, offset=offset, length=len(name)),
                )

    def written(self, key: str, what: str, outputs: list[str]) -> None:
        """The columns that the property names are among what is written."""
        written = {name.lower() for name in outputs}
        for index, name in enumerate(self.resource.body.get(key, ())):
            if name.lower() not in written:
                self.findings.add(
                    "MZ020",
                    f"Unknown {what} column {shown(name)}",
                    f"{self.resource.label} writes the columns {listed(outputs, 40)}.",
                    self.findings.did_you_mean(name, outputs) or "use one of these, or add it to `select`.",
                    location=self.resource.location((key, index)),
                )

    def partitions(self, outputs: list[str]) -> None:
        """Each is named once, and something is left for the files."""
        names = [str(name).lower() for name in self.resource.body.get("partition_by", ())]
        twice = len(set(names)) < len(names)
        if names and (twice or {name.lower() for name in outputs} <= set(names)):
            self.findings.add(
                "MZ020",
                "A partition column is named twice" if twice else "Nothing is left for the files",
                f"{self.resource.label} writes the columns {listed(outputs, 40)}; the values of those in "
                "`partition_by` are in the names of folders, the others in files.",
                "name some of the columns, each once.",
                location=self.resource.location(("partition_by",)),
            )

    def _names(self, parsed: Parsed, item: str, path: Path) -> list[str] | None:
        if parsed.star:
            if self.columns is None:
                return None
            return [column for column in self.columns if column.lower() not in parsed.without]
        if parsed.name is None:
            self.findings.add(
                "MZ019",
                "An expression without a name",
                f"{self.resource.label}: what is not just a column needs a name for its result.",
                f"write {shown(f'{item.strip()} AS name')}.",
                location=self.resource.location(path),
            )
            return None
        if parsed.name.lower() in self.own:
            self.findings.add(
                "MZ019",
                f"{parsed.name.lower()} can't be written",
                f"{self.resource.label}: {parsed.name.lower()} is mzplan's own column of this collection.",
                "give it another name: … AS name.",
                location=self.resource.location(path),
            )
            return None
        return [parsed.name]

    def _twice(self, name: str, path: Path) -> None:
        self.findings.add(
            "MZ019",
            f"The column {shown(name)} is written twice",
            f"{self.resource.label}: an earlier item of `select` has the same name.",
            "give one of them another name with AS.",
            location=self.resource.location(path),
        )
