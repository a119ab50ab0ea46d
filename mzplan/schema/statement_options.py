"""The options that ALTER statements can set for a resource, by the schema of its type."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from mzplan.schema.dialect import Json
from mzplan.schema.kinds import ResourceKind
from mzplan.schema.properties import walk_properties


@dataclass(frozen=True, kw_only=True)
class SqlOption:
    """An option of ALTER statements.

    - `path`, `schema`: the path and the schema of the property that the option sets.
    - `sets_one_item`: the option sets a list to one item.

    A statement that sets a property with one option can't use another option of the same property.
    """

    name: str
    path: tuple[str, ...]
    sets_one_item: bool
    schema: Json


class StatementOptions:
    """The options of one kind and type of resource.

    - `single`: options with a name of their own (`x-sql`; `x-sql-one` for one item of a list).
    - `entries`: options for one entry of a mapping with free keys (`x-sql-entry`). An option's path leads to
      the mapping, and its schema is the schema of an entry.
    """

    def __init__(self, kind: ResourceKind):
        self.single: dict[str, SqlOption] = {}
        self.entries: dict[str, SqlOption] = {}
        for path, schema in walk_properties(kind.schema):
            for word, takes_one in (("x-sql", False), ("x-sql-one", True)):
                if (name := schema.get(word)) is not None:
                    self.single[name] = SqlOption(
                        name=name, path=path, sets_one_item=takes_one, schema=schema
                    )
            if (name := schema.get("x-sql-entry")) is not None:
                entry = schema["additionalProperties"]
                self.entries[name] = SqlOption(name=name, path=path, sets_one_item=False, schema=entry)

    def find(self, name: str, key: str | None) -> SqlOption | None:
        """Return the option `name`, or with a key the entry `name "key"`; None if there is no such option."""
        if key is None:
            return self.single.get(name)
        entry = self.entries.get(name)
        return entry and dataclasses.replace(entry, name=f'{name} "{key}"', path=(*entry.path, key))

    @property
    def names(self) -> list[str]:
        """Return the names of all options, sorted, as written in statements."""
        return sorted([*self.single, *(f'{name} "…"' for name in self.entries)])

    @property
    def locating(self) -> tuple[SqlOption, ...]:
        """Return the options that locate a connection's server (`x-locates`)."""
        return tuple(
            option
            for option in self.single.values()
            if "x-locates" in option.schema and not option.sets_one_item
        )
