"""Upserts into a PostgreSQL table, without Spark: NULL in the key, and other unique indexes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from mzplan.model.diagnostics import Diagnostic
from tests.contract.postgres_sinks import SinkDatabase, probed, stage


@pytest.fixture
def shop(sinks: Callable[..., SinkDatabase]) -> SinkDatabase:
    return sinks("id BIGINT, email STRING, at TIMESTAMP NOT NULL", "public.t")


def probe(shop: SinkDatabase, ddl: str, **body: Any) -> tuple[Diagnostic, ...]:
    """Create the table, and return the diagnostics of a sink of (id, email, at)."""
    shop.run(f"DROP TABLE IF EXISTS t, other CASCADE; {ddl}")
    return probed(shop.query(**{"table": "t", "mode": "upsert", **body}))


def test_key_columns_that_allow_null_are_an_error_with_a_fix(shop: SinkDatabase) -> None:
    table = "CREATE TABLE t (id bigint UNIQUE, email text UNIQUE, at timestamptz)"
    by_email: dict[str, Any] = {"key": ["email"], "select": ["email", "at", "id"]}
    (found,) = (d for d in probe(shop, table, **by_email) if d.code == "MZ055")
    assert found.severity == "error"
    assert found.hint.startswith("ALTER TABLE t ALTER COLUMN email SET NOT NULL;")
    assert probe(shop, f"{table}; {found.hint}", **by_email) == ()
    # If rows are only added, none is deleted, but an update would add another row.
    (found,) = probe(shop, table, keyed=False, **by_email)
    assert (found.code, found.severity) == ("MZ055", "warning")
    # NULL is allowed where none comes: in the collection's key, and in columns that are NOT NULL.
    assert probe(shop, table, key=["id"]) == ()
    by_time = "CREATE TABLE t (at timestamptz UNIQUE, id bigint)"
    assert probe(shop, by_time, keyed=False, key=["at"], select=["at", "id"]) == ()
    (found,) = probe(shop, by_time, keyed=False, key=["at"], select=["nullif(at, at) AS at", "id"])
    assert found.code == "MZ055"
    # Without an index, the fix has both statements.
    both = "CREATE TABLE t (id bigint, email text)"
    (found,) = probe(shop, both, key=["email"], select=["email", "id"])
    assert (found.code, len(found.hint.splitlines())) == ("MZ055", 2)


TRIGGER = "CREATE TRIGGER noted AFTER UPDATE ON t EXECUTE FUNCTION suppress_redundant_updates_trigger()"


@pytest.mark.parametrize(
    ("column", "more", "why"),
    [
        ("", "", None),
        (", note text", "", "column note is not written"),
        (
            "",
            "CREATE TABLE other (t bigint REFERENCES t ON DELETE CASCADE)",
            "another table refers to it (other_t_fkey)",
        ),
        ("", TRIGGER, "it has a trigger (noted)"),
    ],
    ids=["can-be-inserted-again", "column", "reference", "trigger"],
)
def test_another_unique_index_is_a_warning_if_rows_cannot_be_inserted_again(
    shop: SinkDatabase, column: str, more: str, why: str | None
) -> None:
    table = f"CREATE TABLE t (id bigint PRIMARY KEY, email text UNIQUE, at timestamptz{column})"
    found = probe(shop, f"{table}; {more}", key=["id"])
    assert [(d.code, d.severity) for d in found] == ([("MZ055", "warning")] if why else [])
    assert all(str(why) in d.detail for d in found)


def test_rows_that_swap_unique_values(shop: SinkDatabase) -> None:
    """Rows pass a unique value on in one step, so that every order of updates violates the index."""
    connection, table = shop.admin, "CREATE TABLE t (id bigint PRIMARY KEY, email text UNIQUE)"
    shop.run(f"{table}; INSERT INTO t VALUES (1, 'b'), (2, 'a'), (3, 'z')")
    shop.run("CREATE TABLE other (t bigint REFERENCES t ON DELETE CASCADE); INSERT INTO other VALUES (1)")
    swaps = [(1, 2, "a", 2, 0), (1, 2, "c", 2, 1), (1, 1, "b", 3, 0), (1, 1, "a", 3, 1)]
    staged = [*swaps, (8, 3, "of a dead attempt", 9, 1)]

    def emails() -> dict[Any, Any]:
        return dict(shop.rows("SELECT id, email FROM t"))

    # The referring rows would be deleted with them.
    move = stage(connection, "t", staged)
    with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
        move.move(connection, {1: len(swaps)})
    assert emails() == {1: "b", 2: "a", 3: "z"} and shop.rows("SELECT count(*) FROM other") == [(1,)]
    shop.run("DROP TABLE other")
    move = stage(connection, "t", staged)
    with connection.transaction():
        assert move.move(connection, {1: len(swaps)})
    assert emails() == {1: "a", 2: "c", 3: "z"}
    # Values that aren't unique in the end are an error.
    move = stage(connection, "t", [(2, 1, "z", 9, 1)])
    with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
        move.move(connection, {2: 1})
