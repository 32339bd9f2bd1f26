"""The league of a run: its sides, and all that can be wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from rlplug.config.sections import RunConfig
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import ConfigError, Problem, did_you_mean
from rlplug.learner import Learner
from rlplug.sampling.league import League

__all__ = ["league_of"]

_PATH = "league.sides"


def league_of(
    config: RunConfig, environments: AgentEnvironments, learner: Learner, trained: set[str]
) -> League | None:
    """The league that `[league]` describes, of the `trained` modules; None without one."""
    if not config.league.is_used:
        return None
    agents = environments.agents
    sides, problems = _sides(agents, config.league.sides)
    if not problems:
        problems = _idle(agents, sides, trained)
    if problems:
        told = ", ".join(f"{agent} ({module_id})" for agent, module_id in agents.items())
        raise ConfigError("[league]", problems, f"agents, and their modules: {told}")
    return League(
        config.league,
        environments,
        {name: one for name, one in learner.modules.items() if name in trained},
        sides,
        seed=config.run.seed,
        optimal=config.sampling.optimal,
    )


def _sides(
    agents: Mapping[str, str], patterns: tuple[str, ...]
) -> tuple[list[list[str]], list[Problem]]:
    """The agents of each side."""
    if not patterns:
        by_module: dict[str, list[str]] = {}
        for agent, module_id in agents.items():
            by_module.setdefault(module_id, []).append(agent)
        several = len(by_module) > 1
        return list(by_module.values()) if several else [[agent] for agent in agents], []
    sides = [[one for one in agents if fnmatchcase(one, pattern)] for pattern in patterns]
    problems = []
    for pattern, side in zip(patterns, sides, strict=True):
        if not side:
            guess = did_you_mean(pattern, agents)
            said = f"{pattern!r} matches no agent"
            problems.append(Problem(_PATH, f"{said}, {guess}" if guess else said))
    for agent in agents:
        of = [pattern for pattern, side in zip(patterns, sides, strict=True) if agent in side]
        if len(of) > 1:
            problems.append(Problem(_PATH, f"agent {agent!r} is on several: {', '.join(of)}"))
        elif not of:
            problems.append(Problem(_PATH, f"agent {agent!r} is on none"))
    return sides, problems


def _idle(agents: Mapping[str, str], sides: list[list[str]], trained: set[str]) -> list[Problem]:
    """Why no copy would ever act."""
    if len(sides) < 2:
        return [Problem(_PATH, "all agents are on one side: there is nobody to play against")]
    able = [side for side in sides if any(agents[agent] in trained for agent in side)]
    if len(able) < 2:
        who = ", ".join(able[0]) if able else "nobody"
        why = f"only one has modules that are trained ({who}): there are no copies to play against"
        return [Problem(_PATH, why)]
    return []
