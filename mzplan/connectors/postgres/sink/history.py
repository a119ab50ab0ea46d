"""Moves staged rows into the table of a history, as versions (`mode: history`).

A row of the collection becomes a version when it appears or differs from the key's last version. The next
version of the key, or its deletion, ends it. One statement computes and writes all versions of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mzplan.connectors.frames.merges import EXISTS, TIME, VERSION
from mzplan.connectors.postgres.sink.staging import (
    ATTEMPTS,
    Move,
    as_assigned,
    casts,
    descending,
    position_column,
)
from mzplan.connectors.postgres.tables import Connection
from mzplan.connectors.postgres.types import TargetColumn, quoted
from mzplan.schema.target_writes import IS_CURRENT, VALID_FROM, VALID_TO

_THERE, _AT, _ORDER, _BEGUN = '"mzplan there"', '"mzplan at"', '"mzplan order"', '"mzplan begun"'
_NUMBER, _FROM, _TO = '"mzplan number"', '"mzplan from"', '"mzplan to"'
_MICROSECOND = "interval '1 microsecond'"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMove(Move):
    """Moves staged changes into a table of versions.

    `since`: the column that says when a version begins; None for the time of the collection's commit.
    `replaces`: end the current versions of keys that no staged row has, and use only each key's last row.
    """

    since: TargetColumn | None

    def write(self, connection: Connection, parameters: Mapping[str, object]) -> None:
        connection.execute(self._record(), parameters)

    def _record(self) -> str:
        """Return the statement that ends versions and adds new ones, in this order.

        The order matters for an index that allows one current version of each key.
        """
        own = ", ".join(quoted(target.name) for target in self.targets)
        steps = ",\n".join(f"{name} AS ({query})" for name, query in self._steps())
        begin, end, current = (quoted(self._column(name)) for name in (VALID_FROM, VALID_TO, IS_CURRENT))
        return (
            f"WITH {steps}\n"
            f"INSERT INTO {self.table.sql} ({own}, {begin}, {end}, {current}) "
            f"SELECT {own}, {_FROM}, {_TO}, {_TO} IS NULL FROM timeline "
            f"WHERE {_BEGUN} IS NULL AND {_THERE} = 1 AND (SELECT count(*) FROM ended) >= 0"
        )

    def _steps(self) -> Iterator[tuple[str, str]]:
        """Yield the names and queries of the statement's parts."""
        own = ", ".join(quoted(target.name) for target in self.targets)
        of_key = f"PARTITION BY {', '.join(quoted(key.name) for key in self.keys)} ORDER BY"
        begin, end, current = (quoted(self._column(name)) for name in (VALID_FROM, VALID_TO, IS_CURRENT))
        yield "staged", self._staged()
        yield "changes", self._changes(own)
        points = f"SELECT {own}, {_THERE}, {_AT}, {_ORDER}, NULL AS {_BEGUN} FROM changes"
        if self.replaces:
            yield "others", self._others(own, current)
            points += f" UNION ALL SELECT {own}, 0, {_AT}, {_ORDER}, NULL FROM others"
        yield "known", self._known(begin, end)
        yield "points", f"SELECT {own}, {_THERE}, {_AT}, {_ORDER}, {_BEGUN} FROM known UNION ALL {points}"
        yield "numbered", f"SELECT *, row_number() OVER ({of_key} {_ORDER}) AS {_NUMBER} FROM points"
        yield "different", self._different(own)
        later = f"max({_AT} - {_NUMBER} * {_MICROSECOND}) OVER ({of_key} {_NUMBER})"
        yield "timed", f"SELECT *, {later} + {_NUMBER} * {_MICROSECOND} AS {_FROM} FROM different"
        yield "timeline", f"SELECT *, lead({_FROM}) OVER ({of_key} {_NUMBER}) AS {_TO} FROM timed"
        yield (
            "ended",
            f"UPDATE {self.table.sql} AS t SET {end} = l.{_TO}, {current} = false FROM timeline AS l "
            f"WHERE l.{_BEGUN} IS NOT NULL AND l.{_THERE} = 1 AND l.{_TO} IS NOT NULL "
            f"AND {self.same_key} AND t.{begin} = l.{_BEGUN} RETURNING 1",
        )

    def _staged(self) -> str:
        """Return the query for the staged rows, with the values that the table would store."""
        values = ", ".join(
            f"{as_assigned(cast, target)} AS {quoted(target.name)}"
            for cast, target in zip(casts(self.targets), self.targets, strict=True)
        )
        places = "".join(f", p{i} AS {position_column(i)}" for i in range(len(self.position)))
        return f"SELECT {values}{places} FROM {self.stage} WHERE {ATTEMPTS}"

    def _changes(self, own: str) -> str:
        """Return the query for the last change of each key in each version of the collection.

        An update removes the old row and adds the new one in one version, and the new one comes last.
        """
        version, there, time = (self._place(name) for name in (VERSION, EXISTS, TIME))
        at = f"coalesce({time}, now())"
        if self.since is not None:
            at = f"coalesce(CASE WHEN {there} = 1 THEN {quoted(self.since.name)}::timestamptz END, {at})"
        keys = ", ".join(quoted(key.name) for key in self.keys)
        group = keys if self.replaces else f"{keys}, {version}"
        order = ", ".join(descending(i, type_) for i, (_, type_) in enumerate(self.position))
        return (
            f"SELECT DISTINCT ON ({group}) {own}, {there} AS {_THERE}, {at} AS {_AT}, "
            f"{version} AS {_ORDER} FROM staged ORDER BY {group}, {order}"
        )

    def _others(self, own: str, current: str) -> str:
        """Return the query for the current versions of keys that no staged row has."""
        listed = ", ".join(f"t.{quoted(target.name)}" for target in self.targets)
        last = f"SELECT coalesce(max({self._place(TIME)}), now()) FROM staged"
        return (
            f"SELECT {listed}, ({last}) AS {_AT}, 0::bigint AS {_ORDER} FROM {self.table.sql} AS t "
            f"WHERE t.{current} AND NOT EXISTS (SELECT 1 FROM changes AS l WHERE {self.same_key})"
        )

    def _known(self, begin: str, end: str) -> str:
        """Return the query for the last version of each key, which comes before all changes."""
        keys = ", ".join(quoted(key.name) for key in self.keys)
        changed = f"SELECT {keys} FROM changes"
        if self.replaces:
            changed += f" UNION ALL SELECT {keys} FROM others"
        last = f"SELECT * FROM {self.table.sql} AS t WHERE {self.same_key} ORDER BY t.{begin} DESC LIMIT 1"
        listed = ", ".join(f"k.{quoted(target.name)}" for target in self.targets)
        return (
            f"SELECT {listed}, (k.{end} IS NULL)::int AS {_THERE}, "
            f"coalesce(k.{end}, k.{begin})::timestamptz AS {_AT}, -1::bigint AS {_ORDER}, "
            f"k.{begin} AS {_BEGUN} "
            f"FROM (SELECT DISTINCT {keys} FROM ({changed}) AS c) AS l CROSS JOIN LATERAL ({last}) AS k"
        )

    def _different(self, own: str) -> str:
        """Return the query for the changes that differ from the key's version before, and the known versions.

        It numbers the rest again, so that each version begins at least a microsecond after the one before.
        """
        keys = [quoted(key.name) for key in self.keys]
        same_key = " AND ".join(f"b.{key} = n.{key}" for key in keys)
        # Compare binary forms: every type has one. Text of a fixed length differs in trailing spaces only.
        now, before = (f"ROW({', '.join(_compared(side, self.targets))})::record" for side in ("n", "b"))
        is_new = f"b.{_NUMBER} IS NULL OR b.{_THERE} = 0 OR NOT ({now} OPERATOR(pg_catalog.*=) {before})"
        listed = ", ".join(f"n.{quoted(target.name)}" for target in self.targets)
        number = f"row_number() OVER (PARTITION BY {', '.join(f'n.{k}' for k in keys)} ORDER BY n.{_NUMBER})"
        return (
            f"SELECT {listed}, n.{_THERE}, n.{_AT}, n.{_BEGUN}, {number} AS {_NUMBER} FROM numbered AS n "
            f"LEFT JOIN numbered AS b ON {same_key} AND b.{_NUMBER} = n.{_NUMBER} - 1 "
            f"WHERE n.{_BEGUN} IS NOT NULL OR (n.{_THERE} = 1 AND ({is_new})) "
            f"OR (n.{_THERE} = 0 AND b.{_THERE} = 1)"
        )

    def _place(self, field: str) -> str:
        return position_column([name for name, _ in self.position].index(field))

    def _column(self, name: str) -> str:
        """Return the table's spelling of a column's name."""
        column = self.table.column(name)
        return column.name if column is not None else name


def _compared(side: str, targets: Sequence[TargetColumn]) -> Iterator[str]:
    for target in targets:
        yield f"{side}.{quoted(target.name)}" + ("::text" if target.type == "bpchar" else "")
