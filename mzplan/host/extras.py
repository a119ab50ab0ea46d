"""Packages that come with an extra, and the command that installs them.

`pip install mzplan` installs the packages for planning. All other packages come with an extra, and mzplan
imports them only where it uses them. (pyproject.toml repeats this list, and a test compares the two.) If a
package is missing, `missing_extras_reported` turns Python's ModuleNotFoundError into MZ096. No other code
handles it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from traceback import walk_tb

from mzplan.model.diagnostics import MzplanError, error

RUNNER = "runner"

MODULES: Mapping[str, tuple[str, ...]] = {
    "avro": ("fastavro",),
    "aws": ("botocore",),
    "collections": ("deltalake", "numpy", "pyarrow", "xxhash"),
    "kafka": ("confluent_kafka",),
    "lineage": ("openlineage",),
    "object-store": ("obstore",),
    "postgres": ("psycopg",),
    "protobuf": ("grpc_tools",),
    "ssh": ("asyncssh",),
    "ui": ("starlette", "uvicorn"),
    "vault": ("hvac",),
    RUNNER: (
        "pyspark",
        "pandas",
        "prometheus_client",
        "adbc_driver_manager",
        "adbc_driver_postgresql",
        "packaging",
    ),
}
"""By extra: the modules that its packages provide. `runner` also includes all the others except `ui`."""

_PURPOSE = {
    "avro": "It reads Avro schemas",
    "aws": "It signs in to AWS",
    "collections": "It reads and writes collections and files in a warehouse",
    "kafka": "It connects to Kafka",
    "lineage": "It creates and sends run events",
    "object-store": "It reads and writes a state in an object store",
    "postgres": "It connects to PostgreSQL",
    "protobuf": "It compiles definitions of Protobuf",
    "ssh": "It opens tunnels and creates their keys",
    "ui": "It serves pages",
    "vault": "It reads secrets from HashiCorp Vault",
    RUNNER: "A runner needs it, and this command is a runner or starts one here",
}
_EXTRA_OF = {module: extra for extra, modules in MODULES.items() for module in modules}


@contextmanager
def missing_extras_reported() -> Iterator[None]:
    """Raise MzplanError MZ096 if code in the block imports a package of an extra that isn't installed."""
    try:
        yield
    except ModuleNotFoundError as problem:
        module = (problem.name or "").partition(".")[0]
        # A module of mzplan, or a submodule of an installed package, is an error of another kind.
        if module not in _EXTRA_OF or find_spec(module) is not None:
            raise
        raise _missing(module) from None
    except ImportError as problem:
        package = _failed_package(problem)
        if package is None:
            raise
        raise error(
            "MZ096.package-installed",
            package=package,
            purpose=_PURPOSE[_EXTRA_OF[package]],
            problem=str(problem).partition(chr(10))[0],
            extra=_EXTRA_OF[package],
        ) from None


def _failed_package(problem: ImportError) -> str | None:
    """Return the package of an extra that is installed but can't be imported."""
    names = (str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(problem.__traceback__))
    return next((top for name in names if (top := name.partition(".")[0]) in _EXTRA_OF), None)


def require_extra(extra: str) -> None:
    """Raise MzplanError MZ096 if a package of this extra isn't installed. Imports none of them."""
    for module in MODULES[extra]:
        if find_spec(module) is None:
            raise _missing(module)


def _missing(module: str) -> MzplanError:
    extra = _EXTRA_OF[module]
    return error("MZ096.package-not", module=module, purpose=_PURPOSE[extra], extra=extra)
