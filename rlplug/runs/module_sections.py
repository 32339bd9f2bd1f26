"""The sections `[modules.NAME]` of a run, checked against the options of its algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlplug.config.names import Owners, names
from rlplug.config.sections import ModuleSection
from rlplug.config.sources import Layers
from rlplug.config.strict import structure
from rlplug.config.toml import bare_key, plain
from rlplug.errors import Problem
from rlplug.plugin import ALL_MODULES
from rlplug.tracking.journal import FORBIDDEN, metric_name

__all__ = ["module_sections", "options_of", "refused_id"]

_ALGORITHM = "algorithm"
_SUMS = "all"
"""What `train/all/` begins with."""
_LONGEST_ID = 200
"""MLflow's names have 250 characters, with the option's or metric's own."""


def module_sections(
    layers: Layers, algorithm: type[Any], owners: Owners
) -> tuple[dict[str, ModuleSection], list[Problem]]:
    """The sections by module id, and all that is wrong with them."""
    sections: dict[str, ModuleSection] = {}
    problems: list[Problem] = []
    given = layers.section("modules")
    if not isinstance(given, Mapping):
        return {}, []
    base = layers.section("algorithm")
    base = base if isinstance(base, Mapping) else {}
    for name, values in given.items():
        path = f"modules.{name}"
        refused = refused_id(name)
        if refused:
            problems.append(Problem(f"modules.{bare_key(name)}", refused))
            continue
        section, found = structure(ModuleSection, values, path)
        problems += found
        if section is None:
            continue
        options = dict(section.options)
        if _ALGORITHM in options and _ALGORITHM not in names(algorithm):
            del options[_ALGORITHM]
            why = "all modules learn with the algorithm of [run]: leave it out"
            problems.append(Problem(f"{path}.{_ALGORITHM}", why))
        _, found = structure(algorithm, {**base, **options}, path, owners)
        own = {f"{path}.{option}" for option in section.options}
        # What is wrong in [algorithm] is told of [algorithm].
        problems += [one for one in found if one.path.partition("[")[0] in {path, *own}]
        sections[name] = section
    return sections, problems


def refused_id(name: str) -> str:
    """What is wrong with the id of a module, which is part of names in MLflow; empty if nothing."""
    other = FORBIDDEN.search(name)
    if name == ALL_MODULES:
        return "stands for all modules: choose another name"
    if name == _SUMS:
        return "names the sums of all modules in metrics: choose another name"
    if other is not None:
        return f"an id of a module has no {other[0]!r}: use letters, digits, spaces, and _ - . : /"
    if len(name) > _LONGEST_ID:
        return (
            f"an id of a module has {_LONGEST_ID} characters at most, not {len(name)}: shorten it"
        )
    if metric_name(name) != name:
        # Metrics leave such parts out, and would be those of another module, or of all.
        return "an id of a module has more than dots, also between slashes: choose another name"
    return ""


def options_of(algorithm: Any, section: ModuleSection) -> Any:
    """The algorithm's options for a module: those of the run with those of its section."""
    config, problems = structure(
        type(algorithm), {**plain(algorithm), **section.options}, "modules"
    )
    assert config is not None, problems
    return config
