"""Samples from environments of tensors: nothing leaves their device."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from rlplug.batch.nested import copied, leaves, tree_map
from rlplug.envs import Environments
from rlplug.envs.saving import EnvironmentSaver, SavedEnvironments, restore_environments
from rlplug.envs.tensors import TensorVector
from rlplug.errors import FAILURES, EnvironmentFailedError, PluginError, RlplugError
from rlplug.feeds import Experience
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling.tensor_stats import TensorChecks, TensorEpisodeStats
from rlplug.seeding import derive
from rlplug.spaces import ACTION_MASK

__all__ = ["TensorSampler"]

_LOG = logging.getLogger("rlplug")

Columns = dict[str, Any]


class TensorSampler:
    """Steps a vector environment of tensors, with the collections of a `VectorSampler`.

    No step waits for the device: columns, statistics and checks are tensors that are read when
    they are reported. Random numbers depend on the seed and the step alone, so that they are part
    of no state. Where environments reset in a step of their own, that is counted as one.
    """

    def __init__(
        self,
        environments: Environments,
        module: Module,
        *,
        seed: int,
        steps: int = 1,
        keep_next: bool = True,
        by_environment: bool = False,
        state_interval: int = 0,
        run_steps: int = 0,
        optimal: bool = False,
    ) -> None:
        vector = environments.vector
        if not isinstance(vector, TensorVector):
            raise TypeError(f"environments of tensors are needed, not a {type(vector).__name__}")
        self.version = 0
        """Updates of the weights so far."""
        self.step_seconds = 0.0
        """Seconds in the environments' steps; on a GPU, until the work was queued."""
        self.num_envs, self.action_space = vector.num_envs, environments.action_space
        self._environments, self._vector = environments, vector
        self._step_vector: Any = vector.step
        self._num_envs, self._device = vector.num_envs, vector.device
        self._steps, self._seed, self._keep_next = steps, seed, keep_next
        self._place = (environments.first,) if environments.first else ()
        self._state_interval = state_interval or steps
        self._by_environment = by_environment
        self._next_step = environments.autoreset == AutoresetMode.NEXT_STEP
        self._normalization = environments.normalization
        self._saver = EnvironmentSaver()
        self._module = module
        self.choose = module.forward_inference if optimal else module.forward_exploration
        """How the module acts."""
        random = torch.Generator(self._device)
        self._act = ActInput(None, random=random, steps=run_steps, in_torch=True)
        self._clip = _clipper(environments.action_space, self._device)
        self._stats = TensorEpisodeStats(self._num_envs, self._device)
        self._checks = TensorChecks(environments.name, self._device)
        self._taken = 0
        """Environment steps so far, as they were last known."""
        self._told = False
        self._columns: Columns = {}
        self._grids: Columns = {}
        """The same memory with two leading dimensions, time and environment."""
        self._current: Columns = {}
        """The observations to act on next, not normalised, and their action mask."""
        self._only_reset = torch.zeros(self._num_envs, dtype=torch.bool, device=self._device)
        """Which environments only reset in their next step."""
        self._after_reset = True
        initial = module.initial_state(1)
        self._initial = None if initial is None else tree_map(self._moved, initial)
        self._last: Experience | None = None

    def start(self, seed: int | None = None) -> None:
        """Reset the environments, from a seed of their own under `seed`, or the run's."""
        if self._normalization is not None:
            self._normalization.forget_episodes()
        self._stats.forget_episodes()
        self._after_reset = True
        self._only_reset.zero_()
        if self._initial is not None:
            self._act.state = tree_map(self._repeated, self._initial)
        try:
            observations, infos = self._environments.reset(self._seed if seed is None else seed)
        except RlplugError:
            raise
        except FAILURES as error:
            raise self._failed("reset", self._taken, error) from error
        self._observe(observations, infos)
        self._checks.add_observations(observations, self._current.get(ACTION_MASK))

    @torch.no_grad()
    def collect(self, timestep: int) -> Experience:
        """Take the next steps; what it returns is valid until the next call."""
        self._act.random.manual_seed(derive(self._seed, "acting", timestep, *self._place))
        states: list[Any] = []
        for time in range(self._steps):
            if self._act.state is not None and time % self._state_interval == 0:
                states.append(tree_map(copied, self._act.state))
            self._step(time, timestep + time * self._num_envs)
        self._taken = timestep + self._steps * self._num_envs
        columns = dict(self._columns)
        stepped, ends = columns.pop("stepped", None), columns.pop("ends", None)
        if ends is None and self._keep_next and not self._next_step:
            # The observation before the end is the nearest to what is not given.
            ends = columns["observations"]
        self._last = Experience(
            columns,
            steps=self._steps,
            num_envs=self._num_envs,
            by_environment=self._by_environment,
            following=self._current if self._keep_next else {},
            ends=ends,
            stepped=stepped,
            after_reset=self._after_reset,
            states=states,
            initial_state=self._initial,
        )
        self._after_reset = False
        return self._last

    @torch.no_grad()
    def ask_for_log_prob(self) -> bool:
        """Have the module return log-probabilities; whether it returned them already, unasked."""
        seen, normalization = self._current["observations"], self._normalization
        act = copy.copy(self._act)
        # What it draws does not matter: each collection begins with a seed.
        act.observations = seen if normalization is None else normalization.observations(seen)
        act.action_mask = self._current.get(ACTION_MASK)
        act.state = None if act.state is None else tree_map(copied, act.state)
        self._act.wants_log_prob = True
        return "log_prob" in self.choose(act).extras

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile, `act` and `step`, of acting and stepping."""
        self.choose = record("act", self.choose)
        self._step_vector = record("step", self._step_vector)

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        last = self._last
        if self._normalization is not None and last is not None:
            self._normalization.absorb(
                last.grid(last.columns["observations"]),
                last.grid(last.columns["rewards"]),
                last.ended(),
                None if last.stepped is None else last.grid(last.stepped),
            )

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes since the last call; raises what the checks found."""
        self._checks.raise_if_bad(self._taken)
        metrics, unknown = self._stats.take()
        if unknown and not self._told:
            self._told = True
            _LOG.warning(
                "rlplug: environment %r truncates episodes without infos['final_obs']: their "
                "value is bootstrapped from the observation before.",
                self._environments.name,
            )
        return metrics

    def get_state(self, *, environments: bool = True) -> dict[str, Any]:
        """All that the next collection depends on; `not_saved` tells why without environments."""
        self._checks.raise_if_bad(self._taken)
        saved = SavedEnvironments(reason="checkpoint.save_environments is false")
        if environments:
            beside = (self._current, self._act.state, self._only_reset)
            saved = self._saver.save(self._vector.inner, beside)
        return {
            "episode_stats": self._stats.get_state(),
            "after_reset": self._after_reset,
            "device": self._device.type,
            "environments": saved.pickled,
            "not_saved": saved.reason,
        }

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Restore a state; returns why environments were reset, from `seed`, or nothing."""
        self._stats.set_state(saved["episode_stats"])
        reason = str(saved["not_saved"])
        if saved["environments"] and saved["device"] != self._device.type:
            reason = f"they were on {saved['device']}, here they are on {self._device.type}"
        if reason:
            self.start(seed)
            return reason
        beside = restore_environments(self._vector.inner, saved["environments"])
        self._current, self._act.state, self._only_reset = beside
        self._after_reset = saved["after_reset"]
        return ""

    def close(self) -> None:
        """Close the environments."""
        self._vector.close()

    def _step(self, time: int, now: int) -> None:
        """One step of all environments, written into the columns."""
        act, normalization = self._act, self._normalization
        seen, mask = self._current["observations"], self._current.get(ACTION_MASK)
        act.observations = seen if normalization is None else normalization.observations(seen)
        act.action_mask, act.timestep = mask, now
        acted = self.choose(act)
        self._check_acted(acted)
        self._write(time, "observations", seen)
        self._write(time, "actions", acted.actions)
        if mask is not None:
            self._write(time, ACTION_MASK, mask)
        for name, column in acted.extras.items():
            self._write(time, name, column)
        try:
            acted_on, began = self._clip(acted.actions), perf_counter()
            observations, rewards, terminated, truncated, infos = self._step_vector(acted_on)
            self.step_seconds += perf_counter() - began
        except RlplugError:
            raise
        except FAILURES as error:
            raise self._failed("step", now, error) from error
        for name, column in (
            ("rewards", rewards),
            ("terminated", terminated),
            ("truncated", truncated),
        ):
            self._write(time, name, column)
        ended, stepped, unknown, restarted = terminated | truncated, None, None, None
        if self._next_step:
            restarted = self._only_reset
            stepped = ~restarted
            self._only_reset = ended = ended & stepped
            self._write(time, "stepped", stepped)
        elif self._keep_next:
            finals = self._vector.final_observations(infos)
            if finals is None:
                unknown = truncated
            else:
                self._write(time, "ends", finals)
        if act.state is not None:
            over = ended if restarted is None else restarted
            act.state = tree_map(
                lambda after, initial: torch.where(
                    over.reshape(-1, *(1,) * (after.dim() - 1)), initial, after
                ),
                acted.state,
                self._initial,
            )
        self._stats.add(rewards, ended, stepped, unknown)
        self._observe(observations, infos)
        self._checks.add(rewards, observations, self._current.get(ACTION_MASK))

    def _observe(self, observations: Any, infos: Mapping[str, Any]) -> None:
        mask = infos.get(ACTION_MASK)
        if isinstance(observations, Mapping) and ACTION_MASK in observations:
            mask = observations[ACTION_MASK]
        self._current = {"observations": observations}
        if mask is not None:
            self._current[ACTION_MASK] = mask

    def _write(self, time: int, name: str, column: Any) -> None:
        grid = self._grids.get(name)
        if grid is None:
            self._columns[name] = tree_map(self._allocated, column)
            grid = self._grids[name] = tree_map(self._by_time, self._columns[name])
        tree_map(lambda leaf, part: leaf[time].copy_(part), grid, column)

    def _allocated(self, leaf: Tensor) -> Tensor:
        rows = self._steps * self._num_envs
        return torch.zeros((rows, *leaf.shape[1:]), dtype=leaf.dtype, device=self._device)

    def _by_time(self, leaf: Tensor) -> Tensor:
        shape = leaf.shape[1:]
        if self._by_environment:
            return leaf.view(self._num_envs, self._steps, *shape).transpose(0, 1)
        return leaf.view(self._steps, self._num_envs, *shape)

    def _check_acted(self, acted: Acted) -> None:
        """Refuse what is not a tensor on the device; where tensors are is known to the host."""
        for name, column in {"actions": acted.actions, **acted.extras}.items():
            for leaf in leaves(column):
                if not isinstance(leaf, Tensor) or leaf.device != self._device:
                    found = leaf.device if isinstance(leaf, Tensor) else type(leaf).__name__
                    raise PluginError(
                        f"the module says that it acts on tensors, but its {name} are of {found}, "
                        f"not tensors on {self._device}.",
                        "compute them in torch where act.in_torch is set",
                    )

    def _failed(self, method: str, step: int, error: BaseException) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"environment {self._environments.name!r} failed in {method} after {step:,} steps: "
            f"{type(error).__name__}: {error}",
            "try: fix the environment (--debug shows where)",
        )

    def _moved(self, leaf: Any) -> Tensor:
        return torch.as_tensor(leaf, device=self._device)

    def _repeated(self, leaf: Tensor) -> Tensor:
        return leaf.repeat(self._num_envs, *(1,) * (leaf.dim() - 1))


def _clipper(space: spaces.Space[Any], device: torch.device) -> Callable[[Any], Any]:
    """Clips continuous actions to the bounds of their space; discrete ones must be integers."""
    if isinstance(space, spaces.Dict):
        parts = {name: _clipper(part, device) for name, part in space.spaces.items()}
        return lambda actions: {name: clip(actions[name]) for name, clip in parts.items()}
    if isinstance(space, spaces.Tuple):
        each = [_clipper(part, device) for part in space.spaces]
        return lambda actions: tuple(clip(part) for clip, part in zip(each, actions, strict=True))
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        low = torch.as_tensor(space.low, device=device)
        high = torch.as_tensor(space.high, device=device)
        if not (numpy.isfinite(space.low).any() or numpy.isfinite(space.high).any()):
            return lambda actions: actions.to(low.dtype)
        return lambda actions: actions.to(low.dtype).clamp(low, high)
    return _whole


def _whole(actions: Tensor) -> Tensor:
    if actions.is_floating_point():
        raise PluginError(
            f"the module's actions are of {actions.dtype}, the action space has whole numbers.",
            "try: integers, for example the argmax of scores rather than the scores",
        )
    return actions
