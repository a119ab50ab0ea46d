"""The settings with which mzplan begins each of its sessions with a PostgreSQL server.

Tasks import this module, so it imports no client library.
"""

from __future__ import annotations

# The login's own path, without pg_catalog, which is then searched first. So no function or operator of
# another schema hides one of PostgreSQL's own, and triggers of the user's tables find what they refer to.
_OWN_PATH = (
    "pg_catalog.array_to_string(ARRAY(SELECT pg_catalog.quote_ident(s) "
    "FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) AS s "
    "WHERE s OPERATOR(pg_catalog.<>) 'pg_catalog'), ', ')"
)
_DURABLE = (
    "CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off' THEN 'on' "
    "ELSE pg_catalog.current_setting('synchronous_commit') END"
)
_SINCE_17 = (
    "CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL "
    "THEN pg_catalog.set_config('transaction_timeout', '0', false) END"
)
_SETTINGS = {
    "client_encoding": "'UTF8'",
    "datestyle": "'ISO, MDY'",
    "intervalstyle": "'postgres'",
    "timezone": "'UTC'",
    "bytea_output": "'hex'",
    "extra_float_digits": "'1'",
    "standard_conforming_strings": "'on'",
    "default_transaction_isolation": "'read committed'",
    "statement_timeout": "'0'",
    "synchronous_commit": _DURABLE,
    "search_path": _OWN_PATH,
}


def session_statement(**settings: str) -> str:
    """Return one statement that sets everything that mzplan relies on, and the given settings.

    The server, a database, a role and the process's environment (`PGTZ`) may all have other defaults. This
    isn't part of the connection string, because poolers such as PgBouncer refuse a connection with startup
    parameters that they don't know.
    """
    values = _SETTINGS | {name: f"'{value}'" for name, value in settings.items()}
    calls = (f"pg_catalog.set_config('{name}', {value}, false)" for name, value in values.items())
    return f"SELECT {', '.join(calls)}, {_SINCE_17}"
