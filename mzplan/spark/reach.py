"""What a text of others could have Spark do, taken out of it: call Java, open files, import Python.

Expressions of `select` and `where` are looked at (mzplan.spark.projection). Others come with tables, which
whoever writes the warehouse can alter under a running query: Delta evaluates generated columns and
constraints with each write, and PySpark imports, or unpickles, what a schema names as a user-defined type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from mzplan.connectors.frames.row_clock import NAME
from mzplan.schema.expressions import JAVA, XPATH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REACHING = (*JAVA, *XPATH, "from_protobuf", "to_protobuf")


def take_out(session: SparkSession) -> None:
    """Of this process: of the session, and of all that are made from now on."""
    from pyspark.sql.types import UserDefinedType

    spark: Any = session
    catalyst = spark._jvm.org.apache.spark.sql.catalyst
    module = getattr(catalyst.analysis, "FunctionRegistry$").__getattr__("MODULE$")
    for registry in (module.builtin(), spark._jsparkSession.sessionState().functionRegistry()):
        listed = registry.listFunction()
        # Spark 4.2 has them qualified in a session's registry, and by their names alone in the common one.
        lines = str(listed.mkString("\n")).lower().split("\n")
        names = [line.rpartition(".")[2].strip("`") for line in lines]
        identifiers = {name: listed.apply(place) for place, name in enumerate(names) if name in _REACHING}
        if reflect := identifiers.get("reflect"):
            clock = catalyst.FunctionIdentifier(NAME, reflect.database(), reflect.catalog())
            builder = registry.lookupFunctionBuilder(reflect).get()
            registry.registerFunction(clock, registry.lookupFunction(reflect).get(), builder)
        for identifier in identifiers.values():
            registry.dropFunction(identifier)
    UserDefinedType.fromJson = classmethod(_refuse)  # type: ignore[assignment,method-assign]


def _refuse(type_: type, description: dict[str, Any]) -> NoReturn:
    raise ValueError("a schema has a user-defined type, which would be code of whoever has written it")
