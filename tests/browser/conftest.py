"""`python -m pytest tests/browser/test_ui.py --update-images` writes docs/images."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-images", action="store_true", help="Write the pictures of the documentation.")
