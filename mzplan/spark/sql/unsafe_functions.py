"""Removes functions with which foreign text could call Java, open files, or import Python.

mzplan.spark.sql.projection checks the expressions of `select` and `where`. Other expressions come with
foreign tables: Delta evaluates the generated columns and constraints of a sink's target on each write.
PySpark imports, or unpickles, user-defined types that a table's schema names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from mzplan.connectors.frames.types import CLOCK
from mzplan.schema.sql.faults import JAVA, XPATH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNSAFE = (*JAVA, *XPATH, "from_protobuf", "to_protobuf")


def remove_unsafe_functions(session: SparkSession) -> None:
    """Remove the functions from a session, and from all later sessions of this process."""
    from pyspark.sql.types import UserDefinedType

    spark: Any = session
    catalyst = spark._jvm.org.apache.spark.sql.catalyst
    module = getattr(catalyst.analysis, "FunctionRegistry$").__getattr__("MODULE$")
    for registry in (module.builtin(), spark._jsparkSession.sessionState().functionRegistry()):
        listed = registry.listFunction()
        # Spark 4.2 qualifies names in a session's registry, but not in the common registry.
        lines = str(listed.mkString("\n")).lower().split("\n")
        names = [line.rpartition(".")[2].strip("`") for line in lines]
        identifiers = {name: listed.apply(place) for place, name in enumerate(names) if name in _UNSAFE}
        if reflect := identifiers.get("reflect"):
            clock = catalyst.FunctionIdentifier(CLOCK, reflect.database(), reflect.catalog())
            builder = registry.lookupFunctionBuilder(reflect).get()
            registry.registerFunction(clock, registry.lookupFunction(reflect).get(), builder)
        for identifier in identifiers.values():
            registry.dropFunction(identifier)
    UserDefinedType.fromJson = classmethod(_refuse)  # type: ignore[assignment,method-assign]


def _refuse(type_: type, description: dict[str, Any]) -> NoReturn:
    raise ValueError("a schema has a user-defined type, which would run foreign code")
