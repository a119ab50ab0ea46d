"""`python -m pytest tests/cases --update-golden` writes the results of all cases, for review."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the expected files of tests/cases.")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    # With a default: when all of tests/ runs, this file is read after the command line.
    return bool(request.config.getoption("--update-golden", default=False))
