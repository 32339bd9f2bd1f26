"""Which module acts for which agent, from the options of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from rlplug.batch.episodes import DEFAULT_MODULE
from rlplug.config.module_section import ModuleSection
from rlplug.errors import ConfigError, Problem, did_you_mean
from rlplug.spaces import AnySpace, describe

__all__ = ["map_agents"]


def map_agents(
    name: str,
    agent_spaces: Mapping[str, tuple[AnySpace, AnySpace]],
    sections: Mapping[str, ModuleSection],
) -> dict[str, str]:
    """The module id of every agent; raises all that is wrong with `[modules]`.

    Without sections, agents with equal spaces share a module: `default` if that is one module for
    all, else modules named after their agents.
    """
    if not sections:
        return _shared(agent_spaces)
    problems: list[Problem] = []
    claims: dict[str, list[str]] = {agent: [] for agent in agent_spaces}
    for module_id, section in sections.items():
        path = f"modules.{module_id}.agents"
        if not section.patterns:
            problems.append(Problem(path, "names no agent: give names or patterns"))
        for pattern in section.patterns:
            found = _matching(pattern, module_id, agent_spaces, sections, path, problems)
            if found == []:
                problems.append(Problem(path, _matches_none(pattern, agent_spaces)))
            for agent in found or ():
                if module_id not in claims[agent]:
                    claims[agent].append(module_id)
    if not problems:
        for agent, ids in claims.items():
            if not ids:
                problems.append(Problem("modules", f"agent {agent!r} is in no module"))
            elif len(ids) > 1:
                problems.append(
                    Problem("modules", f"agent {agent!r} is in several: {', '.join(ids)}")
                )
    mapping = {agent: ids[0] for agent, ids in claims.items() if ids}
    if not problems:
        problems = _differing(agent_spaces, mapping)
    if problems:
        hint = f"agents of {name}: {', '.join(agent_spaces)}"
        raise ConfigError("[modules]", problems, hint)
    return mapping


def _shared(agent_spaces: Mapping[str, tuple[AnySpace, AnySpace]]) -> dict[str, str]:
    groups: list[list[str]] = []
    for agent, pair in agent_spaces.items():
        for group in groups:
            if agent_spaces[group[0]] == pair:
                group.append(agent)
                break
        else:
            groups.append([agent])
    if len(groups) == 1:
        return dict.fromkeys(agent_spaces, DEFAULT_MODULE)
    stems = [{agent.rpartition("_")[0] or agent for agent in group} for group in groups]
    names = []
    for group, own in zip(groups, stems, strict=True):
        (stem, *more) = sorted(own)
        alone = sum(stem in others for others in stems) == 1
        names.append(stem if alone and not more else group[0])
    return {agent: name for name, group in zip(names, groups, strict=True) for agent in group}


def _matching(
    pattern: str,
    module_id: str,
    agents: Mapping[str, Any],
    sections: Mapping[str, Any],
    path: str,
    problems: list[Problem],
) -> list[str] | None:
    """The agents that a pattern stands for; None if a problem was found."""
    if ":" not in pattern:
        return [agent for agent in agents if fnmatchcase(agent, pattern)]
    try:
        function = _imported(pattern)
        answers = {agent: function(agent) for agent in agents}
    except Exception as error:
        problems.append(Problem(path, f"{pattern!r} failed: {type(error).__name__}: {error}"))
        return None
    for agent, answer in answers.items():
        if answer not in sections:
            guess = did_you_mean(str(answer), sections)
            said = f"{pattern!r} maps agent {agent!r} to an unknown module {answer!r}"
            problem = Problem(path, f"{said}, {guess}" if guess else said)
            if problem not in problems:
                problems.append(problem)
            return None
    return [agent for agent, answer in answers.items() if answer == module_id]


def _imported(path: str) -> Callable[[str], Any]:
    package, _, name = path.partition(":")
    function: Callable[[str], Any] = getattr(import_module(package), name)
    return function


def _matches_none(pattern: str, agents: Sequence[str] | Mapping[str, Any]) -> str:
    guess = did_you_mean(pattern, agents)
    return f"{pattern!r} matches no agent" + (f", {guess}" if guess else "")


def _differing(
    agent_spaces: Mapping[str, tuple[AnySpace, AnySpace]], mapping: Mapping[str, str]
) -> list[Problem]:
    """Modules whose agents have different spaces."""
    problems = []
    firsts: dict[str, str] = {}
    for agent, module_id in mapping.items():
        first = firsts.setdefault(module_id, agent)
        for place, kind in enumerate(("observations", "actions")):
            here, there = agent_spaces[agent][place], agent_spaces[first][place]
            if here != there:
                problems.append(
                    Problem(
                        f"modules.{module_id}",
                        f"{kind} of its agents differ: {first!r} has {describe(there)}, "
                        f"{agent!r} has {describe(here)}; give them modules of their own",
                    )
                )
    return problems
