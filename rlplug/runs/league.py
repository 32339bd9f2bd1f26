"""The league of a run: its sides, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from rlplug.config.sections import RunConfig
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import ConfigError, Problem, did_you_mean
from rlplug.plugin import Module
from rlplug.sampling.league import League, Roster

__all__ = ["league_of", "refuse_split_teams", "roster_for"]


def league_of(
    config: RunConfig,
    environments: AgentEnvironments,
    modules: Mapping[str, Module],
    trained: Collection[str],
) -> League:
    """The league that `[league]` describes, of the `trained` modules."""
    return League(
        roster_for(config, environments.agents, modules, trained),
        environments,
        seed=config.run.seed,
        self_play=config.league.self_play,
        optimal=config.sampling.optimal,
    )


def roster_for(
    config: RunConfig,
    agents: Mapping[str, str],
    modules: Mapping[str, Module],
    trained: Collection[str],
) -> Roster:
    """Who may play in the league of a run."""
    sides, problems = _sides(agents, config.league.sides)
    able = [side for side in sides if any(agents[agent] in trained for agent in side)]
    if not problems and len(able) < 2:
        problems.append("fewer than two sides have modules that are trained")
    if problems:
        named = ", ".join(f"{agent} ({module_id})" for agent, module_id in agents.items())
        raise ConfigError(
            "[league]",
            [Problem("league.sides", problem) for problem in problems],
            f"agents, and their modules: {named}",
        )
    own = {name: module for name, module in modules.items() if name in trained}
    return Roster(config.league, agents, own, sides)


def refuse_split_teams(
    config: RunConfig, agents: Mapping[str, str], teams: Collection[str]
) -> None:
    """Refuse a league in which agents of a module in `teams`, which learns as a team, are apart."""
    sides, _ = _sides(agents, config.league.sides)
    for module_id in teams:
        team = {agent for agent, its_module in agents.items() if its_module == module_id}
        if not any(team <= set(side) for side in sides):
            said = f"module {module_id!r} learns as a team, and agents of it would play each other"
            hint = "try: give each side modules of its own, or leave out [league]"
            raise ConfigError("[league]", [Problem("league", said)], hint)


def _sides(
    agents: Mapping[str, str], patterns: tuple[str, ...]
) -> tuple[list[list[str]], list[str]]:
    """The agents of each side, and what is wrong with the patterns."""
    if not patterns:
        by_module: dict[str, list[str]] = {}
        for agent, module_id in agents.items():
            by_module.setdefault(module_id, []).append(agent)
        several = len(by_module) > 1
        return list(by_module.values()) if several else [[agent] for agent in agents], []
    sides = {
        pattern: [agent for agent in agents if fnmatchcase(agent, pattern)] for pattern in patterns
    }
    problems = []
    for pattern, side in sides.items():
        if not side:
            guess = did_you_mean(pattern, agents)
            problems.append(f"{pattern!r} matches no agent, {guess}".removesuffix(", "))
    for agent in agents:
        matching = [pattern for pattern, side in sides.items() if agent in side]
        if len(matching) != 1:
            problems.append(f"agent {agent!r} is on {len(matching)} sides, not on one")
    return list(sides.values()), problems
