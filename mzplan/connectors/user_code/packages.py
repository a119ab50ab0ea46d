"""The packages of the user's functions, as they are installed where this process runs.

Names are normalized as pip does it: `shop-transforms` for `shop_transforms`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.schema.user_functions import FunctionName

_imported: dict[str, str] = {}  # by package: the version of the code that this process has imported


def require_package(address: Address, requires: str) -> None:
    """Raise MzplanError MZ361 unless the required package is here, in a right version."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(requires)
    except InvalidRequirement as problem:
        reason = str(problem).splitlines()[0]
        raise error("MZ361.requirement", address=address, requires=requires, reason=reason) from None
    found = version_here(_normalized(wanted.name))
    if found is None:
        raise error("MZ361.not-installed", address=address, requires=requires, package=wanted.name)
    if not wanted.specifier.contains(found, prereleases=True):
        raise error(
            "MZ361.other-version", address=address, requires=requires, package=wanted.name, version=found
        )


def package_of(function: FunctionName, requires: str = "") -> str:
    """Return the package that has a function; "" if none has it, or if it is in the project's folder."""
    if requires:
        from packaging.requirements import Requirement

        return _normalized(Requirement(requires).name)
    if function.is_in_project:
        return ""
    names = _distributions().get(function.module.partition(".")[0], ())
    return _normalized(names[0]) if names else ""


def version_here(package: str) -> str | None:
    """Return the version of a package: of the imported code, or else the installed one; None without one."""
    if package in _imported:
        return _imported[package]
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def remember_version(package: str) -> str:
    """Return the version of a package whose code was just imported; "" if unknown.

    A version that is installed over it later doesn't change the code of this process.
    """
    found = version_here(package) if package else None
    if found is not None:
        _imported[package] = found
    return found or ""


def _normalized(name: str) -> str:
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(name))


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())
