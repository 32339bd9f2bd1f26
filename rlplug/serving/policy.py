"""A policy from a checkpoint: observations in, actions out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from gymnasium import spaces

from rlplug.batch.nested import first_leaf, to_arrays, tree_map
from rlplug.envs.normalization import Normalization
from rlplug.errors import RequestError
from rlplug.plugin import ActInput, Module
from rlplug.sampling.checks import action_clipper, first_fully_masked
from rlplug.serving.reader import Reader
from rlplug.spaces import AnySpace, mask_width

__all__ = ["ESTIMATING_DRAWS", "Policy"]

ESTIMATING_DRAWS = 200
"""Draws whose shares are the probabilities of a policy that does not tell them."""


class Policy:
    """Acts as the module did when the checkpoint was written; it needs no environment.

    It takes observations as the environment returns them, and normalises and stacks frames itself.
    Call `reset` at the start of an episode: it clears frames and recurrent state.
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
        run_steps: int = 0,
        path: Path | None = None,
        seed: int = 0,
    ) -> None:
        self.module = module
        """Already in eval mode."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.normalization = normalization
        """The statistics of training; they do not change any more."""
        self.step = step
        """Environment steps of its training so far."""
        self.run_steps = run_steps
        """Those of its whole training, for exploration that ends with it; 0: not known."""
        self.path = path
        """The checkpoint it comes from."""
        self.frame_stack = frame_stack
        """Number of frames that one observation has; 1: no stack."""
        self._reader = Reader(observation_space, frame_stack)
        self._random = numpy.random.default_rng(seed)
        self._state: Any = None
        self._rows = 0
        self._clip = action_clipper(action_space)

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

        `deterministic=False` explores as in training. `episode_start` resets the recurrent state
        of those rows where it is True; for a single observation, `reset` does the same.
        """
        if episode_start is not None and numpy.ndim(episode_start) == 0 and episode_start:
            self.reset()
        rows, single = self._reader.read(observation)
        act = self._input(rows, action_mask, single, episode_start)
        choose = self.module.forward_inference if deterministic else self.module.forward_exploration
        with torch.no_grad():
            acted = choose(act)
        self._state = acted.state
        actions = self._clip(to_arrays(acted.actions))
        return tree_map(lambda leaf: leaf[0], actions) if single else actions

    def probabilities(
        self, observations: Any, deterministic: bool = True, *, action_mask: Any = None
    ) -> Any:
        """The probability of each discrete action, (n, actions), for several observations.

        With memory, calls are the steps of n episodes, as those of `predict`.
        """
        space = self.action_space
        if not isinstance(space, spaces.Discrete):
            raise RequestError(
                "probabilities of all actions are those of discrete ones.", "try: log_prob"
            )
        rows, single = self._reader.read(observations)
        act = self._input(rows, action_mask, single, None)
        n = len(first_leaf(rows))
        shares: Any = None
        with torch.no_grad():
            if deterministic:
                acted = self.module.forward_inference(act)
                shares = _shares([acted.actions], n, space)
                self._state = acted.state
            else:
                shares = self.module.action_probabilities(act)
                if shares is None:
                    drawn = [self.module.forward_exploration(act) for _ in range(ESTIMATING_DRAWS)]
                    shares = _shares([one.actions for one in drawn], n, space)
                if self.has_memory:
                    self._state = self.module.forward_exploration(act).state
        return shares[0] if single else shares

    @property
    def tells_probabilities(self) -> bool:
        """Whether the module computes them; otherwise, they are shares of draws."""
        return type(self.module).action_probabilities is not Module.action_probabilities

    def log_prob(self, observations: Any, actions: Any, *, action_mask: Any = None) -> Any:
        """The log-probability (the log-density) of one action per observation, as it explores."""
        rows, single = self._reader.read(observations)
        act = self._input(rows, action_mask, single, None)
        with torch.no_grad():
            found = self.module.action_log_prob(act, numpy.asarray(actions))
            if found is not None and self.has_memory:
                self._state = self.module.forward_exploration(act).state
        if found is None:
            raise RequestError(
                f"{type(self.module).__name__} does not tell the probabilities of its actions.",
                "try: a policy of ppo, a2c or bc",
            )
        return found

    def reset(self) -> None:
        """Start new episodes: clear frames and recurrent state."""
        self._state = None
        self._reader.reset()

    def fork(self) -> Policy:
        """A policy with the same weights, and frames and recurrent state of its own."""
        return Policy(
            self.module,
            self.observation_space,
            self.action_space,
            normalization=self.normalization,
            frame_stack=self.frame_stack,
            step=self.step,
            run_steps=self.run_steps,
            path=self.path,
        )

    @property
    def has_memory(self) -> bool:
        """Whether actions depend on earlier observations of the episode."""
        return self.module.initial_state(1) is not None

    def _input(self, rows: Any, action_mask: Any, single: bool, episode_start: Any) -> ActInput:
        return ActInput(
            rows if self.normalization is None else self.normalization.observations(rows),
            action_mask=_checked_mask(self.action_space, rows, action_mask, single),
            state=self._state_of(len(first_leaf(rows)), episode_start),
            timestep=self.step,
            steps=self.run_steps,
            random=self._random,
        )

    def _state_of(self, n: int, episode_start: Any) -> Any:
        initial = self.module.initial_state(n)
        if initial is None:
            return None
        if self._state is None:
            self._rows = n
            return initial
        if self._rows != n:
            raise RequestError(
                f"the policy remembers {self._rows} episodes, and got {n} observations.",
                "call policy.reset() before other episodes begin",
            )
        if episode_start is None:
            return self._state
        starts = numpy.zeros(n, dtype=bool) | numpy.asarray(episode_start, dtype=bool)
        return _with_initial_rows(self._state, initial, starts) if starts.any() else self._state


def _shares(drawn: list[Any], n: int, space: spaces.Discrete) -> Any:
    """How often each action was chosen, (n, actions)."""
    shares = numpy.zeros((n, int(space.n)))
    for actions in drawn:
        chosen = numpy.asarray(to_arrays(actions)).reshape(-1) - int(space.start)
        shares[numpy.arange(n), chosen] += 1 / len(drawn)
    return shares


def _with_initial_rows(state: Mapping[str, Any], initial: Any, rows: Any) -> dict[str, Any]:
    """A copy of the recurrent state in which these rows are reset."""
    copy: dict[str, Any] = {}
    for name, part in state.items():
        if isinstance(part, torch.Tensor):
            index = torch.as_tensor(rows)
            copy[name] = part.clone()
            copy[name][index] = torch.as_tensor(initial[name], device=part.device)[index]
        else:
            copy[name] = numpy.array(part)
            copy[name][rows] = to_arrays(initial[name])[rows]
    return copy


def _checked_mask(space: AnySpace, rows: Any, given: Any, single: bool) -> Any:
    mask: Any
    if given is not None:
        mask = numpy.asarray(given, dtype=bool)
        mask = mask[None] if single else mask
        width = mask_width(space)
        if width is not None and mask.shape != (len(first_leaf(rows)), width):
            raise RequestError(
                f"the action mask has shape {numpy.shape(given)}, expected "
                f"{(width,) if single else (len(first_leaf(rows)), width)}.",
                "give True for each action that may be chosen",
            )
    else:
        mask = rows.get("action_mask") if isinstance(rows, dict) else None
    if mask is not None and first_fully_masked(mask) is not None:
        raise RequestError(
            "the action mask forbids every action.", "allow at least one for each observation"
        )
    return mask
