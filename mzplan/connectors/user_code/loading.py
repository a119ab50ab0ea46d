"""Loads the user's functions, where the queries run.

A function of a package is imported. A module of the project's folder is run from its committed text, never
from its file. Its functions and classes are pickled by value, so executors need neither text nor folder.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.user_code.failures import failed
from mzplan.connectors.user_code.packages import package_of, remember_version, require_package
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.user_functions import (
    CODE,
    FunctionName,
    SqlFunction,
    digest_of_code,
    function_of,
    sql_functions,
)

_lock = threading.RLock()
_modules: dict[str, ModuleType] = {}  # by name; of committed texts


@dataclass(frozen=True, slots=True)
class LoadedFunction:
    """A function of the user, ready to be called.

    - `package`, `version`: the package that has it, and the version that was imported; "" if unknown.
    """

    name: FunctionName
    call: Callable[..., Any]
    package: str
    version: str

    @property
    def release(self) -> str:
        """The package and its version for people, such as `shop_transforms 1.4.2`; "" if unknown."""
        return f"{self.package} {self.version}" if self.version else ""


def load_function(query: ResolvedQuery) -> LoadedFunction:
    """Return the function of a query. Raises the same errors as `_load`."""
    body = query.description.body
    name = function_of(query.address.kind, query.description.type, body)
    assert name is not None, f"{query.address} has no function"
    return _load(query, name, str(query.body.get("requires", "")), str(body.get(CODE, "")))


def load_sql_function(query: ResolvedQuery, function: SqlFunction) -> LoadedFunction:
    """Return a function that the SQL of a query calls. Raises the same errors as `_load`."""
    return _load(query, function.function, function.requires, function.code)


def load_functions(query: ResolvedQuery) -> tuple[LoadedFunction, ...]:
    """Return the user's functions that a query runs. Raises the same errors as `_load`.

    The code of a proposal isn't committed, so its modules of the project's folder are left out.
    """
    if function_of(query.address.kind, query.description.type, query.description.body) is not None:
        return (load_function(query),)
    called = sql_functions(query.description.body).values()
    runs = (one for one in called if not (query.is_proposed and one.function.is_in_project))
    return tuple(load_sql_function(query, one) for one in runs)


def _load(query: ResolvedQuery, name: FunctionName, requires: str, code: str) -> LoadedFunction:
    """Return a function, and run its module unless this process has done so before.

    Raises MzplanError: MZ361 if there is no such function here, or another version of its package than the
    query requires; MZ362 if its module fails.
    """
    if requires:
        require_package(query.address, requires)
    with _lock:
        try:
            if name.is_in_project:
                module = _module_of_text(name, code)
            else:
                _require_installed(query, name)
                module = import_module(name.module)
        except (MzplanError, KeyboardInterrupt):
            raise
        except ModuleNotFoundError as problem:
            if problem.name and f"{name.module}.".startswith(f"{problem.name}."):
                raise error("MZ361.no-module", address=query.address, module=name.module) from None
            raise failed(query.address, name, problem) from None
        except BaseException as problem:  # the module may raise anything
            raise failed(query.address, name, problem) from None
    function = getattr(module, name.name, None)
    if not callable(function):
        raise error("MZ361.no-function", address=query.address, module=name.module, name=name.name)
    package = package_of(name, requires)
    return LoadedFunction(name, function, package, remember_version(package))


def _module_of_text(function: FunctionName, text: str) -> ModuleType:
    """Return the module that a committed text defines. Equal texts give one module."""
    name = f"mzplan_code_{digest_of_code(f'{function.module}:{text}')}"
    if (known := _modules.get(name)) is not None:
        return known
    from pyspark import cloudpickle

    module = ModuleType(name)
    module.__file__ = function.module
    sys.modules[name] = module  # dataclasses and pickle look for it there
    try:
        exec(compile(text, function.module, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    _modules[name] = module
    return module


def _require_installed(query: ResolvedQuery, function: FunctionName) -> None:
    """Raise MzplanError MZ361 for a module of Python or mzplan, or one in the project's folder.

    A proposal must not call whatever Python has. A file in the project's folder isn't committed: a checkout
    may have brought it.
    """
    top = function.module.partition(".")[0]
    if top in (*sys.stdlib_module_names, *sys.builtin_module_names, "mzplan"):
        raise error("MZ361.standard", address=query.address, module=function.module)
    if package_of(function):
        return
    folder = Path(query.directory).resolve()
    found = [
        path
        for entry in sys.path
        for path in (Path(entry or ".") / top, Path(entry or ".") / f"{top}.py")
        if path.exists()
    ]
    if found and found[0].resolve().is_relative_to(folder):
        raise error("MZ361.in-project", address=query.address, module=function.module)
