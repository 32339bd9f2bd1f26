"""The pytest plugin: `--rlplug NAME` for installed plugins, `--rlplug-slow` for slow checks.

Every pytest run loads it where rlplug is installed, so it imports nothing but pytest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]

MARK = "rlplug_slow"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("rlplug", "conformance checks of rlplug plugins")
    group.addoption(
        "--rlplug",
        metavar="NAME",
        action="append",
        default=[],
        help="check an installed algorithm or add-on (may be given several times)",
    )
    group.addoption(
        "--rlplug-slow", action="store_true", help="run the slow conformance checks as well"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the checks of installed plugins, and nothing else unless paths are named."""
    config.addinivalue_line("markers", f"{MARK}: a slow conformance check")
    if config.getoption("rlplug"):
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        checks = str(Path(__file__).with_name("conformance.py"))
        config.args = [*(config.args if named else []), checks]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect slow checks unless `--rlplug-slow` is given."""
    if config.getoption("rlplug_slow"):
        return
    slow = [item for item in items if item.get_closest_marker(MARK)]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker(MARK)]
