"""The league of a run: its sides and all that can be wrong with them, evaluation, and picture."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rlplug.config.sections import RunConfig
from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import ConfigError, Problem, did_you_mean
from rlplug.evaluation import Evaluator
from rlplug.evaluation.league import LeagueEvaluator
from rlplug.hooks.events import RunInfo
from rlplug.plugin import Module
from rlplug.review.league import draw_league
from rlplug.sampling import Collector
from rlplug.sampling.league import CURRENT, League, Roster
from rlplug.scale.ray_sampler import RaySampler
from rlplug.trainer import Sampler

__all__ = [
    "LeaguePlot",
    "evaluator_for",
    "league_listeners",
    "league_of",
    "refuse_split_teams",
    "roster_for",
    "roster_of",
]

_PATH = "league.sides"
_LOG = logging.getLogger("rlplug")


def league_of(
    config: RunConfig,
    environments: AgentEnvironments,
    modules: Mapping[str, Module],
    trained: Collection[str],
) -> League | None:
    """The league that `[league]` describes, of the `trained` modules; None without one."""
    roster = roster_for(config, environments.agents, modules, trained)
    if roster is None:
        return None
    return League(
        roster,
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
) -> Roster | None:
    """Who may play in the league of a run; None without one."""
    if not config.league.is_used:
        return None
    sides, problems = _sides(agents, config.league.sides)
    if not problems:
        problems = _idle(agents, sides, trained)
    if problems:
        told = ", ".join(f"{agent} ({module_id})" for agent, module_id in agents.items())
        raise ConfigError("[league]", problems, f"agents, and their modules: {told}")
    own = {name: one for name, one in modules.items() if name in trained}
    return Roster(config.league, agents, own, sides)


def refuse_split_teams(
    config: RunConfig, agents: Mapping[str, str], teams: Collection[str]
) -> None:
    """Refuse a league in which agents of a module in `teams`, which learns as a team, are apart."""
    if not config.league.is_used:
        return
    sides, _ = _sides(agents, config.league.sides)
    problems = []
    for module_id in teams:
        own = [agent for agent, one in agents.items() if one == module_id]
        if not any(set(own) <= set(side) for side in sides):
            said = f"module {module_id!r} learns as a team, and agents of it would play each other"
            problems.append(Problem("league", f"{said}: {', '.join(own)}"))
    if problems:
        hint = "try: give each side modules of its own, or leave out [league]"
        raise ConfigError("[league]", problems, hint)


def roster_of(sampler: Sampler) -> Roster | None:
    """Who may play in the league of a sampler; None without one."""
    return sampler.roster if isinstance(sampler, Collector | RaySampler) else None


def evaluator_for(
    sampler: Sampler,
    make: Callable[[int], Environments],
    make_by_agent: Callable[[int], Environments],
    **options: Any,
) -> Evaluator:
    """An evaluator, with a league also of its pool."""
    roster = roster_of(sampler)
    if roster is None:
        return Evaluator(make, **options)
    return LeagueEvaluator(make, make_by_agent, roster, **options)


def league_listeners(sampler: Sampler) -> list[object]:
    """What draws the league at the end of a run, if there is one."""
    roster = roster_of(sampler)
    return [] if roster is None else [LeaguePlot(roster)]


class LeaguePlot:
    """Writes `plots/league.png` when a run ends, however it does."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._folder: Path | None = None
        self._subtitle = ""

    def run_started(self, run: RunInfo) -> None:
        """Keep where to write."""
        self._folder = run.folder
        options = run.config.run
        self._subtitle = f"{options.algorithm} on {run.environment}, seed {options.seed}"

    def run_finished(self, step: int) -> None:
        """Draw."""
        self._draw(step)

    def run_failed(self, step: int) -> None:
        """Draw what there is."""
        self._draw(step)

    def _draw(self, step: int) -> None:
        pool = self._roster
        if self._folder is None or not pool.copies:
            return
        numbers = [*(one.number for one in pool.copies), CURRENT]
        try:
            draw_league(
                steps=[one.step for one in pool.copies],
                win_rates=[[pool.win_rate_of(one, other) for other in numbers] for one in numbers],
                ratings=[*pool.history, (step, pool.elo)],
                subtitle=self._subtitle,
                file=self._folder / "plots" / "league.png",
            )
        except Exception as error:
            # A full disk or a broken font must not make the run fail.
            _LOG.warning("rlplug: the league cannot be drawn: %s.", error)


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


def _idle(
    agents: Mapping[str, str], sides: list[list[str]], trained: Collection[str]
) -> list[Problem]:
    """Why no copy would ever act."""
    if len(sides) < 2:
        return [Problem(_PATH, "all agents are on one side: there is nobody to play against")]
    able = [side for side in sides if any(agents[agent] in trained for agent in side)]
    if len(able) < 2:
        who = ", ".join(able[0]) if able else "nobody"
        why = f"only one has modules that are trained ({who}): there are no copies to play against"
        return [Problem(_PATH, why)]
    return []
