"""The checks as a pytest class: `class TestMine(AlgorithmConformance): name = "mine"`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from rlplug.registry import ADDON, ALGORITHM, Kind
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject
from rlplug.testing.table import Check, checks_for

__all__ = ["AddOnConformance", "AlgorithmConformance"]

_SUBJECT = pytest.StashKey[Subject]()


class _Conformance:
    """What both classes share: one test per check, and what to check with."""

    __test__ = False

    name: ClassVar[str] = ""
    """The plugin's entry point; or `plugin`, a class that is not installed."""
    plugin: ClassVar[type[Any] | None] = None
    options: ClassVar[Mapping[str, Any]] = {}
    """Options to check it with."""
    variants: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Further options in which something takes part that otherwise does not."""
    environment: ClassVar[Callable[[], Any] | None] = None
    """A callable that makes an environment, where it supports none of the kit's."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # The two classes below are there to be subclassed; whoever does that wants tests.
        cls.__test__ = bool(cls.name or cls.plugin)

    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        """The plugin under test, the same for all tests of the class."""
        chosen: Any = request.cls
        node = request.node.getparent(pytest.Class)
        if _SUBJECT not in node.stash:
            node.stash[_SUBJECT] = _subject_of(chosen)
        found: Subject = node.stash[_SUBJECT]
        return found


def _subject_of(chosen: Any) -> Subject:
    given: dict[str, Any] = {"options": chosen.options, "variants": chosen.variants}
    for name in ("environment", "neutral"):
        # Read from the class, where a function is no method yet.
        if getattr(chosen, name, None) is not None:
            given[name] = getattr(chosen, name)
    return Subject.of(chosen.plugin or chosen.name, **given)


def run(check: Check, subject: Subject) -> None:
    """One check as a test: what has nothing to look at is skipped, with the reason."""
    __tracebackhide__ = True
    try:
        check(subject)
    except DoesNotApply as reason:
        pytest.skip(f"does not apply: {reason}")


def _test_of(check: Check) -> Callable[[Any, Subject], None]:
    def test(self: Any, subject: Subject) -> None:
        __tracebackhide__ = True
        run(check, subject)

    test.__name__ = test.__qualname__ = f"test_{check.name}"
    test.__doc__ = check.description
    return test if check.quick else pytest.mark.rlplug_slow(test)


def _with_tests_for(kind: Kind) -> Callable[[type[_Conformance]], Any]:
    def add(conformance: type[_Conformance]) -> type[_Conformance]:
        for check in checks_for(kind, slow=True):
            setattr(conformance, f"test_{check.name}", _test_of(check))
        return conformance

    return add


@_with_tests_for(ALGORITHM)
class AlgorithmConformance(_Conformance):
    """Every check for algorithms: subclass it and set `name`."""


@_with_tests_for(ADDON)
class AddOnConformance(_Conformance):
    """Every check for add-ons: subclass it and set `name`."""

    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Options by which it claims to change nothing, bit for bit."""
