"""A policy out of a checkpoint: observations in, actions out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch
from gymnasium import spaces

from rlplug.batch.nested import first_leaf, to_arrays, tree_map
from rlplug.envs.normalization import Normalization
from rlplug.errors import RequestError
from rlplug.plugin import ActInput, Module
from rlplug.sampling.masks import first_without_choice
from rlplug.sampling.translation import sent_to
from rlplug.serving.memory import begun_anew
from rlplug.serving.reader import Reader

__all__ = ["Policy"]


class Policy:
    """Acts as the run did when the checkpoint was written; it needs no environment.

    It takes observations as the environment gives them: scales and stacks of frames are its own.
    What it remembers of an episode (frames, the state of a recurrent module) it forgets on
    `reset`, to be called when an episode begins.
    """

    def __init__(
        self,
        module: Module,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        normalization: Normalization | None = None,
        frame_stack: int = 1,
        step: int = 0,
        path: Path | None = None,
        seed: int = 0,
    ) -> None:
        self.module = module
        """Already in eval mode."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.normalization = normalization
        """Scales observations as in training, by statistics that stand still now."""
        self.step = step
        """Environment steps that it was trained for."""
        self.path = path
        """The checkpoint it comes from."""
        self._reader = Reader(observation_space, frame_stack)
        self._random = numpy.random.default_rng(seed)
        self._state: Any = None
        self._rows = 0
        self._sent = sent_to(action_space)

    def __repr__(self) -> str:
        return f"Policy({type(self.module).__name__} of step {self.step:,}, {self.path})"

    def predict(
        self,
        observation: Any,
        deterministic: bool = True,
        *,
        action_mask: Any = None,
        episode_start: Any = None,
    ) -> Any:
        """The action for one observation, or the actions for several with a first axis.

        `deterministic=False` acts as in training. `episode_start` is True where an episode begins,
        for several episodes at once; for one, `reset` does the same.
        """
        if episode_start is not None and numpy.ndim(episode_start) == 0 and episode_start:
            self.reset()
        rows, single = self._reader.read(observation)
        n = len(first_leaf(rows))
        act = ActInput(
            rows if self.normalization is None else self.normalization.observations(rows),
            action_mask=_mask(rows, action_mask, single),
            state=self._remembered(n, episode_start),
            timestep=self.step,
            random=self._random,
        )
        choose = self.module.forward_inference if deterministic else self.module.forward_exploration
        with torch.no_grad():
            acted = choose(act)
        self._state = acted.state
        actions = self._sent(to_arrays(acted.actions))
        return tree_map(lambda leaf: leaf[0], actions) if single else actions

    def reset(self) -> None:
        """Forget everything: new episodes begin."""
        self._state = None
        self._rows = 0
        self._reader.forget()

    def _remembered(self, n: int, episode_start: Any) -> Any:
        fresh = self.module.initial_state(n)
        if fresh is None:
            return None
        if self._state is None:
            self._rows = n
            return fresh
        if self._rows != n:
            raise RequestError(
                f"the policy remembers {self._rows} episodes, and got {n} observations.",
                "call policy.reset() before other episodes begin",
            )
        if episode_start is None:
            return self._state
        starts = numpy.zeros(n, dtype=bool) | numpy.asarray(episode_start, dtype=bool)
        return begun_anew(self._state, fresh, starts)


def _mask(rows: Any, given: Any, single: bool) -> Any:
    mask: Any
    if given is not None:
        mask = numpy.asarray(given, dtype=bool)
        mask = mask[None] if single else mask
    else:
        mask = rows.get("action_mask") if isinstance(rows, dict) else None
    if mask is not None and first_without_choice(mask) is not None:
        raise RequestError(
            "the action mask forbids every action.", "allow at least one for each observation"
        )
    return mask
