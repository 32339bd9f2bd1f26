"""Checks of how a plugin is found and imported."""

from __future__ import annotations

from rlplug.registry import Registry, is_name
from rlplug.testing.child import report_of
from rlplug.testing.report import CheckFailed, DoesNotApply
from rlplug.testing.subject import Subject

__all__ = ["check_importing_is_quiet", "check_is_found_once"]


def check_is_found_once(subject: Subject) -> None:
    """One entry point with a good name, of a distribution that says which cores it fits."""
    found = subject.found
    if found.loaded is not None:
        raise DoesNotApply("it is a class at hand, not an installed plugin")
    offers = [one for one in Registry.installed().of_kind(found.kind) if one.name == found.name]
    if len(offers) != 1:
        raise CheckFailed(
            f"one entry point named {found.name!r}",
            f"{len(offers)}: {', '.join(one.package for one in offers)}",
            "the installed distributions (pip uninstall those that are not meant)",
        )
    if not is_name(found.name):
        raise CheckFailed(
            "a name of lower case letters, digits and dashes",
            repr(found.name),
            f"[project.entry-points] in pyproject.toml of {found.distribution}",
        )
    _check_bounds(subject)


def check_importing_is_quiet(subject: Subject) -> None:
    """Importing the plugin prints nothing, starts no thread, leaves random generators alone."""
    report = report_of(subject)
    looked_for = "an import that does nothing but define classes"
    home = f"the top level of module {subject.found.target.partition(':')[0]!r}"
    if report["printed"]:
        raise CheckFailed(looked_for, f"it printed {report['printed']!r}", home)
    if report["threads"]:
        raise CheckFailed(looked_for, f"it started thread {report['threads'][0]!r}", home)
    if report["generators"]:
        found = f"it drew from or seeded {', '.join(report['generators'])}"
        raise CheckFailed(looked_for, found, home)


def _check_bounds(subject: Subject) -> None:
    from packaging.requirements import Requirement

    found = subject.found
    wanted = [Requirement(line) for line in found.requires]
    bounds = {
        clause.operator
        for one in wanted
        if one.name.lower() == "rlplug"
        for clause in one.specifier
    }
    lower, upper = bounds & {">=", ">", "~=", "=="}, bounds & {"<", "<=", "~=", "=="}
    if not (lower and upper):
        raise CheckFailed(
            "a requirement that bounds the core from below and above",
            next((str(one) for one in wanted if one.name.lower() == "rlplug"), "none on rlplug"),
            f'dependencies in pyproject.toml of {found.distribution}: "rlplug>=0.1,<0.2"',
        )
