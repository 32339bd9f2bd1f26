"""Checks of what a plugin declares: its entry point, its module and its hooks."""

from __future__ import annotations

from rlplug.errors import PluginError
from rlplug.hooks.binding import bind
from rlplug.registry import Registry, is_name
from rlplug.testing.child_process import run_in_child_process
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject

__all__ = ["check_hooks_are_well_formed", "check_importing_is_quiet", "check_is_found_once"]


def check_is_found_once(subject: Subject) -> None:
    """It has one entry point, and its distribution bounds the version of rlplug."""
    found = subject.found
    if found.loaded is not None:
        raise DoesNotApply("it is a class, not an installed plugin")
    entries = [one for one in Registry.installed().of_kind(found.kind) if one.name == found.name]
    if len(entries) != 1:
        raise CheckFailed(
            f"one entry point named {found.name!r}",
            f"{len(entries)}: {', '.join(one.package for one in entries)}",
            "the installed distributions: uninstall all but one with pip",
        )
    if not is_name(found.name):
        raise CheckFailed(
            "a name of lower case letters, digits and dashes",
            repr(found.name),
            f"[project.entry-points] in pyproject.toml of {found.distribution}",
        )
    _check_bounds(subject)


def check_importing_is_quiet(subject: Subject) -> None:
    """Importing it prints nothing, starts no thread and draws no random numbers."""
    report = run_in_child_process(subject)
    looked_for = "an import that only defines classes"
    home = f"the top level of module {subject.found.target.partition(':')[0]!r}"
    if report["printed"]:
        raise CheckFailed(looked_for, f"it printed {report['printed']!r}", home)
    if report["threads"]:
        raise CheckFailed(looked_for, f"it started thread {report['threads'][0]!r}", home)
    if report["generators"]:
        found = f"it drew from or seeded {', '.join(report['generators'])}"
        raise CheckFailed(looked_for, found, home)


def check_hooks_are_well_formed(subject: Subject) -> None:
    """Every hook has a known name and known arguments."""
    try:
        bind([subject.participant()])
    except PluginError as error:
        raise CheckFailed(
            "hooks with the names and arguments that `rlplug plugins hooks` lists",
            error.message,
            location(subject.kind),
        ) from error


def _check_bounds(subject: Subject) -> None:
    from packaging.requirements import Requirement

    found = subject.found
    requirements = [Requirement(line) for line in found.requires]
    on_core = [one for one in requirements if one.name.lower() == "rlplug"]
    bounds = {clause.operator for one in on_core for clause in one.specifier}
    lower, upper = bounds & {">=", ">", "~=", "=="}, bounds & {"<", "<=", "~=", "=="}
    if not (lower and upper):
        raise CheckFailed(
            "a requirement with a lower and an upper bound of rlplug",
            str(on_core[0]) if on_core else "none on rlplug",
            f'dependencies in pyproject.toml of {found.distribution}: "rlplug>=0.1,<0.2"',
        )
