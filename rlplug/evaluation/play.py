"""Play an exact number of episodes, each of which was assigned to an environment in advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy
import torch
from gymnasium.vector import AutoresetMode

from rlplug.envs import Environments
from rlplug.errors import EnvironmentFailedError, RlplugError
from rlplug.evaluation.scores import Played, Scores
from rlplug.plugin import Acted, ActInput, Module
from rlplug.seeding import derive

__all__ = ["LONGEST", "play"]

LONGEST = 1_000_000
"""Steps after which an episode counts as it is, lest one without an end hold up the run."""


def play(
    module: Module,
    environments: Environments,
    *,
    episodes: int,
    seed: int,
    timestep: int = 0,
    greedy: bool = True,
    check: Callable[[], None] = lambda: None,
    longest: int = LONGEST,
) -> Played:
    """The returns and lengths of exactly so many episodes.

    Whoever takes the first n episodes that end counts the short ones too often. Here each
    environment has its share before anything begins, and plays it to the end. `check` is called
    every step and may raise to leave early.
    """
    table = _Table(environments, module, numpy.random.default_rng(derive(seed, "acting")))
    act, choose = table.act, module.forward_inference if greedy else module.forward_exploration
    act.timestep = timestep
    scores = Scores(episodes, environments.num_envs, longest)
    table.reset(seed)
    while scores.playing.any():
        check()
        with torch.no_grad():
            acted = choose(act)
        stepped, rewards, ended = table.step(acted)
        scores.add(stepped, rewards, ended)
    return scores.played()


@attrs.define(eq=False)
class _Table:
    """Environments and who plays in them: what is seen, remembered, and reset."""

    environments: Environments
    module: Module
    random: numpy.random.Generator
    act: ActInput = attrs.field(init=False)
    _fresh: Mapping[str, Any] | None = attrs.field(init=False)
    _resetting: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        n = self.environments.num_envs
        self._fresh = self.module.initial_state(n)
        self._resetting = numpy.zeros(n, dtype=bool)
        self.act = ActInput(None, random=self.random)

    def reset(self, seed: int) -> None:
        """All episodes begin, from a seed."""
        with self._named("reset"):
            observations, infos = self.environments.vector.reset(seed=seed % 2**31)
        self.act.state = self._fresh
        self._see(observations, infos)

    def step(self, acted: Acted) -> tuple[Any, Any, Any]:
        """Where a step was taken (and not only a reset), what it paid, and where it was the last.

        Three ways in which vectors reset: in the same step, in the next one, or when told to.
        """
        vector, mode = self.environments.vector, self.environments.autoreset
        with self._named("step"):
            observations, rewards, terminated, truncated, infos = vector.step(acted.actions)
        stepped, ended = ~self._resetting, terminated | truncated
        begun = ended
        if mode == AutoresetMode.NEXT_STEP:
            begun, self._resetting = self._resetting, ended.copy()
        elif mode == AutoresetMode.DISABLED and ended.any():
            with self._named("reset"):
                observations, infos = vector.reset(options={"reset_mask": ended})
        self.act.state = _begun_anew(acted.state, self._fresh, begun)
        self._see(observations, infos)
        return stepped, numpy.asarray(rewards, dtype=float), ended

    def _see(self, observations: Any, infos: Mapping[str, Any]) -> None:
        self.act.observations = observations
        if isinstance(observations, dict) and "action_mask" in observations:
            self.act.action_mask = observations["action_mask"]
        else:
            mask = infos.get("action_mask")
            self.act.action_mask = None if mask is None else numpy.stack(list(mask))

    def _named(self, what: str) -> _Failures:
        return _Failures(self.environments.name, what)


@attrs.frozen
class _Failures:
    """Says of any error inside that an environment of an evaluation failed."""

    name: str
    what: str

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, RlplugError):
            raise EnvironmentFailedError(
                f"environment {self.name!r} failed in {self.what} of an evaluation: "
                f"{type(error).__name__}: {error}",
                "try: mend the environment (--debug shows where); what was recorded stays",
            ) from error


def _begun_anew(state: Any, fresh: Any, rows: Any) -> Any:
    """The state in which these rows remember nothing."""
    if state is None or not rows.any():
        return state
    return {name: _with_rows(part, fresh[name], rows) for name, part in state.items()}


def _with_rows(part: Any, fresh: Any, rows: Any) -> Any:
    if isinstance(part, torch.Tensor):
        tensor = part.clone()
        index = torch.as_tensor(rows)
        tensor[index] = torch.as_tensor(fresh, device=part.device)[index]
        return tensor
    array = numpy.array(part)
    array[rows] = numpy.asarray(fresh)[rows]
    return array
