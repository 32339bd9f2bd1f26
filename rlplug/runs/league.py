"""The league of a run: its sides and what can be wrong with them, its picture, and its copies."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.manifest import reading
from rlplug.checkpoint.state import read_training
from rlplug.config.sections import RunConfig
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import ConfigError, Problem, RequestError, did_you_mean
from rlplug.hooks.events import RunInfo
from rlplug.plugin import Module
from rlplug.registry import Registry
from rlplug.review.plots import league_figure, save
from rlplug.sampling.league import CURRENT, League, Roster
from rlplug.serving import AgentPolicy

__all__ = ["LeaguePlot", "league_of", "load_league", "refuse_split_teams", "roster_for"]

_PATH = "league.sides"
_LOG = logging.getLogger("rlplug")


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
    if not problems and len(sides) < 2:
        said = "all agents are on one side: there is nobody to play against"
        problems.append(Problem(_PATH, said))
    elif not problems:
        able = [side for side in sides if any(agents[agent] in trained for agent in side)]
        if len(able) < 2:
            who = ", ".join(able[0]) if able else "nobody"
            said = f"only one has modules that are trained ({who}): no copies to play against"
            problems.append(Problem(_PATH, said))
    if problems:
        named = ", ".join(f"{agent} ({module_id})" for agent, module_id in agents.items())
        raise ConfigError("[league]", problems, f"agents, and their modules: {named}")
    own = {name: module for name, module in modules.items() if name in trained}
    return Roster(config.league, agents, own, sides)


def refuse_split_teams(
    config: RunConfig, agents: Mapping[str, str], teams: Collection[str]
) -> None:
    """Refuse a league in which agents of a module in `teams`, which learns as a team, are apart."""
    sides, _ = _sides(agents, config.league.sides)
    problems = []
    for module_id in teams:
        own = [agent for agent, its_module in agents.items() if its_module == module_id]
        if not any(set(own) <= set(side) for side in sides):
            said = f"module {module_id!r} learns as a team, and agents of it would play each other"
            problems.append(Problem("league", f"{said}: {', '.join(own)}"))
    if problems:
        hint = "try: give each side modules of its own, or leave out [league]"
        raise ConfigError("[league]", problems, hint)


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
    sides = [[agent for agent in agents if fnmatchcase(agent, one)] for one in patterns]
    problems = []
    for pattern, side in zip(patterns, sides, strict=True):
        if not side:
            guess = did_you_mean(pattern, agents)
            said = f"{pattern!r} matches no agent"
            problems.append(Problem(_PATH, f"{said}, {guess}" if guess else said))
    for agent in agents:
        of = [pattern for pattern, side in zip(patterns, sides, strict=True) if agent in side]
        if len(of) != 1:
            where = f"on several: {', '.join(of)}" if of else "on none"
            problems.append(Problem(_PATH, f"agent {agent!r} is {where}"))
    return sides, problems


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
        pool = self._roster
        if self._folder is None or not pool.copies:
            return
        numbers = [*(copy.number for copy in pool.copies), CURRENT]
        try:
            figure = league_figure(
                [copy.step for copy in pool.copies],
                [[pool.win_rate_of(one, other) for other in numbers] for one in numbers],
                [*pool.history, (step, pool.elo)],
                self._subtitle,
            )
            save(figure, self._folder / "plots" / "league.png")
        except Exception as error:
            # A full disk or a broken font must not make the run fail.
            _LOG.warning("rlplug: the league cannot be drawn: %s.", error)

    run_failed = run_finished


def load_league(
    run: str | Path,
    *,
    checkpoint: str | int | Path = "last",
    seed: int = 0,
    registry: Registry | None = None,
    trust: bool = False,
) -> tuple[AgentPolicy, ...]:
    """The copies in the pool of a run with a league, the oldest first: `load_league("last")`.

    `step` of each is when it was made. The arguments are those of `load`.
    """
    from rlplug.runs.loading import load_checkpoint

    path = find_checkpoint(str(run), checkpoint)
    with reading(path, "league"):
        saved = read_training(path)["run"].get("league")
    if not saved:
        raise RequestError(
            f"the run of {path} has no league.", "try: a run with [league], or rlplug.load"
        )
    policies = []
    for copy in saved["copies"]:
        policy = load_checkpoint(
            path, seed=seed, registry=registry, copies=copy["modules"], trust=trust
        ).policy
        assert isinstance(policy, AgentPolicy)
        for own in (policy, *policy.agents.values()):
            own.step = copy["step"]
        policies.append(policy)
    return tuple(policies)
