"""Checks of what a plugin declares: its entry point, its module, its options and its hooks."""

from __future__ import annotations

from contextlib import suppress

import attrs

from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.errors import PluginError
from rlplug.hooks.binding import bind
from rlplug.registry import Registry, is_name
from rlplug.testing.check import check
from rlplug.testing.child_process import run_in_child_process
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject


@check()
def is_found_once(subject: Subject) -> None:
    """It has one entry point, and its distribution bounds the version of rlplug."""
    from packaging.requirements import Requirement

    found = subject.found
    if found.loaded is not None:
        raise DoesNotApply("it is a class, not an installed plugin")
    place = f"pyproject.toml of {found.distribution}"
    entries = [one for one in Registry.installed().of_kind(found.kind) if one.name == found.name]
    if len(entries) != 1:
        packages = f"{len(entries)}: {', '.join(one.package for one in entries)}"
        raise CheckFailed(f"one entry point named {found.name!r}", packages, "what is installed")
    if not is_name(found.name):
        looked_for = "a name of lower case letters, digits and dashes"
        raise CheckFailed(looked_for, repr(found.name), f"[project.entry-points] in {place}")
    needed = [one for one in map(Requirement, found.requires) if one.name.lower() == "rlplug"]
    bounds = {clause.operator for one in needed for clause in one.specifier}
    if not (bounds & {">=", ">", "~=", "=="} and bounds & {"<", "<=", "~=", "=="}):
        raise CheckFailed(
            "a requirement with a lower and an upper bound of rlplug",
            str(needed[0]) if needed else "none on rlplug",
            f'dependencies in {place}: "rlplug>=0.1,<0.2"',
        )


@check()
def importing_is_quiet(subject: Subject) -> None:
    """Importing it prints nothing, starts no thread and draws no random numbers."""
    report = run_in_child_process(subject)
    for part in ("printed", "threads", "generators"):
        if report[part]:
            home = f"the top level of module {subject.found.target.partition(':')[0]!r}"
            raise CheckFailed(
                "an import that only defines classes", f"{part}: {report[part]!r}", home
            )


@check()
def options_are_typed_and_documented(subject: Subject) -> None:
    """`Config` is frozen and keyword-only; each option has a default and a line of help."""
    kind = subject.kind.Config
    where = location(kind)
    if not attrs.has(kind):
        raise CheckFailed("a Config made with attrs.frozen(kw_only=True)", repr(kind), where)
    for field in attrs.fields(kind):
        lacks = "" if field.metadata.get("help") else "has no help"
        lacks = "is positional" if not field.kw_only else lacks
        lacks = "has no default" if field.default is attrs.NOTHING else lacks
        if lacks:
            raise CheckFailed(
                "keyword-only options, each with a default and a line of help",
                f"{field.name!r} {lacks}",
                f'{where}: {field.name} = rlplug.option(default, "one line of help")',
            )
    config = kind()
    for field in attrs.fields(kind)[:1]:
        with suppress(attrs.exceptions.FrozenInstanceError):
            setattr(config, field.name, getattr(config, field.name))
            raise CheckFailed("a frozen Config", "its options can be set", where)
    again, problems = structure(kind, plain(config), "")
    if problems or again != config:
        found = "; ".join(f"{one.path} {one.message}" for one in problems) or f"{again!r}"
        raise CheckFailed("defaults that can be written as TOML and read back", found, where)
    if subject.kind(config).config is not config:
        looked_for = "a plugin that keeps the options it is made with in `self.config`"
        raise subject.failure(looked_for, "another object, or none", "", "__init__")


@check()
def hooks_are_well_formed(subject: Subject) -> None:
    """Every hook has a known name and known arguments."""
    try:
        bind([subject.participant()])
    except PluginError as error:
        looked_for = "hooks with the names and arguments that `rlplug plugins hooks` lists"
        raise CheckFailed(looked_for, error.message, location(subject.kind)) from error


@check("algorithm", tier="gold")
def feed_has_the_options(subject: Subject) -> None:
    """What `feed` describes has the options of the same names, such as `n_steps`."""
    usual, applies = subject.config(), False
    numbers = [name for name in subject.option_names if type(getattr(usual, name)) in (int, float)]
    more = [{name: getattr(usual, name) + 1} for name in numbers]
    for changes in filter(subject.accepts, ({}, *subject.settings, *more)):
        config = subject.changed(changes)
        feed = subject.kind(config).feed()
        for field in attrs.fields(type(feed)):
            wanted, found = getattr(config, field.name, None), getattr(feed, field.name)
            applies = applies or wanted is not None
            if isinstance(wanted, bool | int | float) and found != wanted:
                raise subject.failure(
                    f"{type(feed).__name__}({field.name}={wanted!r}) as the option of that name",
                    f"{found!r}",
                    "give the option another name if it means something else",
                    "feed",
                )
    if not applies:
        raise DoesNotApply("its options have none of the feed's names")
