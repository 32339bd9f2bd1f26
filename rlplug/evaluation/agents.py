"""Evaluates the modules of a run with several agents on whole episodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy
import torch
from gymnasium import spaces
from torch import nn

from rlplug.batch.nested import tree_map
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import FAILURES, RlplugError
from rlplug.evaluation.scores import EpisodeScores, EvaluationResult
from rlplug.plugin import Acted, ActInput, Module
from rlplug.review.record import OF_AGENT
from rlplug.sampling.agent_inputs import AgentInputs
from rlplug.sampling.agents import agent_inputs

__all__ = ["AgentModules", "AgentResult", "AgentRunner", "RandomModule", "evaluate_agents"]


class AgentModules(Module):
    """The modules of several agents, as one that cannot act by itself."""

    def __init__(self, by_id: Mapping[str, Module]) -> None:
        super().__init__()
        self.ids = tuple(by_id)
        self.parts = nn.ModuleList(by_id.values())

    @property
    def by_id(self) -> dict[str, Any]:
        """The modules by id."""
        return dict(zip(self.ids, self.parts, strict=True))


class RandomModule(Module):
    """Draws every action that may be chosen with the same probability."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self._space = copy.deepcopy(action_space)

    def forward_exploration(self, act: ActInput) -> Acted:
        """Random actions."""
        return self.forward_inference(act)

    def forward_inference(self, act: ActInput) -> Acted:
        """Random actions."""
        space, mask = self._space, act.action_mask
        space.seed(int(act.random.integers(2**31)))
        n = (
            len(next(iter(act.observations.values())))
            if isinstance(act.observations, dict)
            else len(act.observations)
        )
        if mask is None:
            drawn = [space.sample() for _ in range(n)]
        else:
            drawn = [space.sample(numpy.asarray(row, numpy.int8)) for row in mask]
        return Acted(tree_map(lambda *rows: numpy.stack(rows), *map(_as_leaf, drawn)))


def _as_leaf(drawn: Any) -> Any:
    return drawn if isinstance(drawn, tuple | dict) else numpy.asarray(drawn)


@attrs.frozen(eq=False)
class AgentResult(EvaluationResult):
    """Episodes of several agents; `returns` are their means over agents."""

    agent_returns: Any = attrs.field(kw_only=True)
    """Shape (episodes, agents)."""
    agents: Mapping[str, str] = attrs.field(kw_only=True)
    """Agent → module id, in the order of `agent_returns`."""

    def metrics(self) -> dict[str, float]:
        """Those of all agents together, then `eval/agents/NAME/return_mean`, and of modules."""
        metrics = super().metrics()
        means = self.agent_returns.mean(0)
        for agent, mean in zip(self.agents, means, strict=True):
            metrics[f"{OF_AGENT}{agent}/return_mean"] = float(mean)
        for module_id in dict.fromkeys(self.agents.values()):
            own = [
                mean
                for mean, its in zip(means, self.agents.values(), strict=True)
                if its == module_id
            ]
            metrics[f"eval/modules/{module_id}/return_mean"] = float(numpy.mean(own))
        return metrics


class AgentScores(EpisodeScores):
    """Returns of every agent besides their means."""

    def __init__(self, episodes: int, num_envs: int, max_steps: int, num_agents: int) -> None:
        super().__init__(episodes, num_envs, max_steps)
        self._earned = numpy.zeros((num_envs, num_agents))
        self._by_agent: list[list[Any]] = [[] for _ in range(num_envs)]

    def add_agents(self, rewards: Any, over: Any) -> None:
        """Add one step, shape (num_envs, num_agents)."""
        self._earned += rewards
        self.add(numpy.ones(len(over), bool), rewards.mean(1), over)
        self._earned[over] = 0.0

    def agent_returns(self) -> Any:
        """Shape (episodes, agents), in the order of the result."""
        return numpy.array([one for row in self._by_agent for one in row])

    def _finish(self, row: int) -> None:
        self._by_agent[row].append(self._earned[row].copy())
        super()._finish(row)


class AgentRunner:
    """Steps environments with several agents for evaluation, outside of training."""

    def __init__(
        self,
        environments: AgentEnvironments,
        module: AgentModules,
        normalize: Mapping[str, Callable[[Any], Any]] | None,
        seed: int,
        timestep: int,
    ) -> None:
        self._environments, self._timestep = environments, timestep
        modules = module.by_id
        self._inputs = agent_inputs(
            environments, modules, seed=seed, normalize=normalize or {}, during=" of an evaluation"
        )
        self._choose = {name: one.forward_inference for name, one in modules.items()}
        names = list(environments.agents)
        self._columns = [
            (inputs, [names.index(agent) for agent in inputs.rows.agents])
            for inputs in self._inputs.values()
        ]
        self._taken = 0

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        self._taken = 0
        with self._failures():
            self._environments.reset_games(seed)
        for inputs in self._inputs.values():
            inputs.reset()

    def step(self) -> tuple[Any, Any]:
        """Act greedily; returns rewards, shape (num_envs, num_agents), and which games ended."""
        games = self._environments.games
        with torch.no_grad():
            for name, inputs in self._inputs.items():
                inputs.choose(self._choose[name], self._timestep)
        with self._failures():
            games.step_agents([inputs.chosen for inputs in self._inputs.values()])
        self._taken += games.num_envs
        rewards = numpy.zeros((games.num_envs, len(self._environments.agents)))
        for inputs, columns in self._columns:
            rows = inputs.rows
            inputs.restart([row for row, _ in rows.finals])
            earned = numpy.where(rows.answered, rows.rewards, 0.0)
            inputs.checks.check("a reward", earned, self._taken)
            rewards[:, columns] = earned.reshape(games.num_envs, len(columns))
        return rewards, games.over

    def _failures(self) -> _Failures:
        return _Failures(self)

    def failed(self, error: BaseException) -> Exception:
        """The error for what a game raised."""
        inputs: AgentInputs = next(iter(self._inputs.values()))
        return inputs.checks.failed_in(self._environments.games, self._taken, error)


class _Failures:
    """Tells which game failed."""

    def __init__(self, runner: AgentRunner) -> None:
        self._runner = runner

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, FAILURES) and not isinstance(error, RlplugError):
            raise self._runner.failed(error) from error


def evaluate_agents(
    module: AgentModules,
    environments: AgentEnvironments,
    *,
    episodes: int,
    seed: int,
    timestep: int,
    normalize: Mapping[str, Callable[[Any], Any]] | None,
    check: Callable[[], None],
    max_steps: int,
    watch: Callable[[EpisodeScores], None],
) -> AgentResult:
    """Returns of exactly so many episodes, shared out among the environments in advance."""
    runner = AgentRunner(environments, module, normalize, seed, timestep)
    agents = environments.agents
    scores = AgentScores(episodes, environments.num_envs, max_steps, len(agents))
    watch(scores)
    runner.reset(seed)
    while scores.active.any():
        check()
        scores.add_agents(*runner.step())
    whole = scores.result()
    return AgentResult(
        whole.returns,
        whole.lengths,
        whole.cut,
        agent_returns=scores.agent_returns(),
        agents=agents,
    )
