"""`pytest --rlplug NAME`: one test per check of an installed plugin."""

from __future__ import annotations

import pytest

from rlplug.testing.conformance import run
from rlplug.testing.subject import Subject
from rlplug.testing.table import check_named, checks_for


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for every check of every plugin that was named."""
    cases = []
    for name in metafunc.config.getoption("rlplug"):
        subject = Subject.of(name)
        for check in checks_for(subject.found.kind, slow=True):
            marks = [] if check.quick else [pytest.mark.rlplug_slow]
            cases.append(pytest.param(subject, check.name, id=f"{name}-{check.name}", marks=marks))
    metafunc.parametrize(("subject", "check"), cases)


def test_conforms(subject: Subject, check: str) -> None:
    """The plugin does what this check looks for."""
    __tracebackhide__ = True
    run(check_named(check), subject)
