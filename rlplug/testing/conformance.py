"""The checks as pytest tests: as a class to subclass, and for `pytest --rlplug NAME`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from rlplug.registry import ADDON, ALGORITHM
from rlplug.testing.checks import CHECKS, Check, check_named, checks_for, own_checks
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject

__all__ = ["AddOnConformance", "AlgorithmConformance"]

_SUBJECT = pytest.StashKey[Subject]()


class _Conformance:
    """One test per check, and what to check with."""

    __test__ = False

    name: ClassVar[str] = ""
    """The entry point of an installed plugin; or set `plugin`."""
    plugin: ClassVar[type[Any] | None] = None
    """The class of a plugin that is not installed."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options to check it with."""
    variants: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Further sets of options, which enable what the others leave out."""
    environment: ClassVar[Callable[[], Any] | None] = None
    """Makes an environment to check it in, if it supports none of the kit's."""
    marks: ClassVar[Mapping[str, pytest.MarkDecorator]] = {}
    """Pytest's marks for the tests of some checks, by the names of the checks."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Pytest does not collect the base classes themselves.
        cls.__test__ = bool(cls.name or cls.plugin)
        if cls.__test__:
            kind = Subject.of(cls.plugin or cls.name).kind
            for check in own_checks(kind):
                setattr(cls, f"test_{check.name}", _test_of(check))
            for name, mark in cls.marks.items():
                # A test of its own: that of the base class is the test of every plugin.
                if hasattr(cls, f"test_{name}"):
                    setattr(cls, f"test_{name}", mark(_test_of(check_named(name, kind))))

    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        """The plugin under test, one for all tests of the class."""
        node = request.node.getparent(pytest.Class)
        if _SUBJECT not in node.stash:
            # From the class: an instance would bind a function as a method.
            names = ("options", "variants", "environment", "neutral")
            values = {name: getattr(request.cls, name, None) for name in names}
            given = {name: value for name, value in values.items() if value is not None}
            node.stash[_SUBJECT] = Subject.of(request.cls.plugin or request.cls.name, **given)
        found: Subject = node.stash[_SUBJECT]
        return found


def _run(check: Check, subject: Subject) -> None:
    """Run one check as a test; skip it, with the reason, if it does not apply."""
    __tracebackhide__ = True
    try:
        check(subject)
    except DoesNotApply as reason:
        pytest.skip(f"does not apply: {reason}")


def _test_of(check: Check) -> Callable[[Any, Subject], None]:
    def test(self: Any, subject: Subject) -> None:
        __tracebackhide__ = True
        _run(check, subject)

    test.__name__ = test.__qualname__ = f"test_{check.name}"
    test.__doc__ = check.description
    return test if check.quick else pytest.mark.rlplug_slow(test)


class AlgorithmConformance(_Conformance):
    """Every check for algorithms: subclass it and set `name`."""


class AddOnConformance(_Conformance):
    """Every check for add-ons: subclass it and set `name`."""

    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Options by which it claims to change nothing, bit for bit."""


for _check in CHECKS:
    for _kind, _conformance in ((ALGORITHM, AlgorithmConformance), (ADDON, AddOnConformance)):
        if _check.applies_to(_kind):
            setattr(_conformance, f"test_{_check.name}", _test_of(_check))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per check of each plugin named by `--rlplug`."""
    cases = []
    for name in metafunc.config.getoption("rlplug"):
        subject = Subject.of(name)
        for check in checks_for(subject, slow=True):
            marks = [] if check.quick else [pytest.mark.rlplug_slow]
            cases.append(pytest.param(subject, check, id=f"{name}-{check.name}", marks=marks))
    metafunc.parametrize(("subject", "check"), cases)


def test_conforms(subject: Subject, check: Check) -> None:
    """An installed plugin passes one check."""
    __tracebackhide__ = True
    _run(check, subject)
