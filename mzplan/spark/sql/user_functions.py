"""The user's functions in SQL: registers them in a session before Spark reads the SQL that calls them.

In Spark, each version of a function has a name of its own for each query. So queries that call different
versions can share a session, such as a former query that finishes its step.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.user_code.loading import load_sql_function
from mzplan.connectors.user_code.values import never_called, value_of
from mzplan.schema.columns import spark_type
from mzplan.schema.user_functions import SqlFunction, calls_in, sql_functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class SparkSql:
    """SQL for Spark, and the names of the user's functions that it calls, as they are registered."""

    text: str
    functions: frozenset[str] = frozenset()


def with_functions(session: SparkSession, sql: str, query: ResolvedQuery) -> SparkSql:
    """Return SQL without comments in which Spark finds the user's functions, after it registers them.

    Raises MzplanError MZ361 for a function that isn't here, and MZ362 if its module fails.
    """
    known = sql_functions(query.body)
    calls = list(calls_in(sql, known)) if known else []
    names = {name: _registered(session, query, name, known[name]) for name in {name for name, *_ in calls}}
    for name, start, end in reversed(calls):
        sql = sql[:start] + names[name] + sql[end:]
    return SparkSql(sql, frozenset(names.values()))


def _registered(session: SparkSession, query: ResolvedQuery, name: str, function: SqlFunction) -> str:
    """Return the name of a function in Spark.

    Code that isn't committed doesn't run: its name stands for a function that nobody calls. Spark needs only
    the type of the values to check the SQL.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import DataType, _make_type_verifier

    is_run = not (query.is_proposed and function.function.is_in_project)
    loaded = load_sql_function(query, function) if is_run else None
    caller = sha256(str(query.address).encode()).hexdigest()[:12]  # an error in the function names it
    registered = f"mzplan_{name}_{function.version}_{caller}{'' if is_run else '_unrun'}"
    if not session.catalog.functionExists(registered):
        type_ = DataType.fromDDL(spark_type(function.returns))
        # Before Spark 4.2, Arrow gives functions NaN for NULL and floats for integers. Without Arrow, Spark
        # makes NULL of a value of another type.
        is_exact = tuple(map(int, session.version.split(".")[:2])) >= (4, 2)
        check = None if is_exact else _make_type_verifier(type_)
        call = value_of(loaded.call, query.address, function.function, check) if loaded else never_called
        session.udf.register(registered, f.udf(call, type_, useArrow=is_exact))
    return registered
