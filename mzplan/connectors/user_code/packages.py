"""The packages of the user's functions, as they are installed where this process runs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.schema.user_functions import FunctionName


def require_package(address: Address, requires: str) -> None:
    """Raise MzplanError MZ361 unless the required package is installed in a right version."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(requires)
    except InvalidRequirement as problem:
        reason = str(problem).splitlines()[0]
        raise error("MZ361.requirement", address=address, requires=requires, reason=reason) from None
    found = installed_version(wanted.name)
    if found is None:
        raise error("MZ361.not-installed", address=address, requires=requires, package=wanted.name)
    if not wanted.specifier.contains(found, prereleases=True):
        raise error(
            "MZ361.other-version", address=address, requires=requires, package=wanted.name, version=found
        )


def package_of(function: FunctionName, requires: str) -> str:
    """Return the package that has a function; "" if none has it, or if it is in the project's folder."""
    if requires:
        from packaging.requirements import Requirement

        return Requirement(requires).name
    if function.is_in_project:
        return ""
    return next(iter(_distributions().get(function.module.partition(".")[0], ())), "")


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if it isn't installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())
