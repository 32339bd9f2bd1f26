"""Step environments in this process, and hand every transition on once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from gymnasium.vector import AutoresetMode

from rlplug.batch import Batch
from rlplug.envs import Environments
from rlplug.errors import EnvironmentFailedError, RlplugError
from rlplug.plugin import ActInput, Module
from rlplug.sampling.tally import Tally
from rlplug.seeding import derive

__all__ = ["StreamSampler"]

Columns = dict[str, Any]


class StreamSampler:
    """Acts with one module in a vector of environments, a few steps at a time.

    `next_observations` are kept only if asked for: nothing follows the only step of a bandit.
    """

    def __init__(
        self,
        environments: Environments,
        module: Module,
        *,
        seed: int,
        steps_per_update: int = 1,
        keep_next: bool = True,
    ) -> None:
        self.tally = Tally(environments.num_envs)
        self._environments = environments
        self._module = module
        self._steps = steps_per_update
        self._keep_next = keep_next
        self._seed = seed
        self._act = ActInput(None, random=numpy.random.default_rng(derive(seed, "acting")))
        # Where the vector resets on the next step, that step only resets: no transition.
        self._resets_late = environments.autoreset == AutoresetMode.NEXT_STEP
        self._ended = numpy.zeros(environments.num_envs, dtype=bool)

    def start(self) -> None:
        """Reset the environments, from a seed of their own."""
        seed = derive(self._seed, "environments") % 2**31
        try:
            observations, infos = self._environments.vector.reset(seed=seed)
        except RlplugError:
            raise
        except Exception as error:
            raise self._failed("reset", 0, error) from error
        self._act.state = self._module.initial_state(self._environments.num_envs)
        self._see(observations, infos)

    def collect(self, timestep: int) -> Batch:
        """The transitions of the next steps, one row each."""
        self._act.timestep = timestep
        if self._steps == 1:
            return Batch(self._step(timestep))
        return Batch(_joined([self._step(timestep) for _ in range(self._steps)]))

    def close(self) -> None:
        """Close the environments."""
        self._environments.vector.close()

    def _step(self, timestep: int) -> Columns:
        act = self._act
        acted = self._module.forward_exploration(act)
        columns = {"observations": act.observations, "actions": acted.actions}
        try:
            stepped = self._environments.vector.step(acted.actions)
        except RlplugError:
            raise
        except Exception as error:
            raise self._failed("step", timestep, error) from error
        observations, rewards, terminated, truncated, infos = stepped
        columns["rewards"] = rewards
        columns["terminated"] = terminated
        columns["truncated"] = truncated
        if act.action_mask is not None:
            columns["action_mask"] = act.action_mask
        if acted.extras:
            columns.update(acted.extras)
        if self._keep_next:
            columns["next_observations"] = _final(observations, infos)
        act.state = acted.state
        self._see(observations, infos)
        if self._resets_late:
            return self._without_resets(columns, infos)
        self.tally.add(rewards, terminated, truncated, infos)
        return columns

    def _without_resets(self, columns: Columns, infos: Mapping[str, Any]) -> Columns:
        """Leave out the rows in which an environment did nothing but reset."""
        stepped = ~self._ended
        terminated, truncated = columns["terminated"], columns["truncated"]
        self._ended = terminated | truncated
        self.tally.add(columns["rewards"], terminated, truncated, infos, stepped)
        if stepped.all():
            return columns
        return {name: _rows(column, stepped) for name, column in columns.items()}

    def _see(self, observations: Any, infos: Mapping[str, Any]) -> None:
        self._act.observations = observations
        if isinstance(observations, dict) and "action_mask" in observations:
            self._act.action_mask = observations["action_mask"]
        else:
            mask = infos.get("action_mask")
            self._act.action_mask = None if mask is None else numpy.stack(list(mask))

    def _failed(self, what: str, timestep: int, error: Exception) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"environment {self._environments.name!r} failed in {what} after {timestep:,} steps: "
            f"{type(error).__name__}: {error}",
            "try: mend the environment (--debug shows where); what was recorded stays",
        )


def _final(observations: Any, infos: Mapping[str, Any]) -> Any:
    """What each step led to: where the vector has already reset, the observation before that."""
    ended = infos.get("_final_obs")
    if ended is None or not ended.any():
        return observations
    return _replaced(observations, numpy.flatnonzero(ended), infos["final_obs"])


def _replaced(observations: Any, rows: Any, finals: Any) -> Any:
    if isinstance(observations, dict):
        return {
            name: _replaced(part, rows, _parts(finals, name)) for name, part in observations.items()
        }
    if isinstance(observations, tuple):
        return tuple(
            _replaced(part, rows, _parts(finals, index)) for index, part in enumerate(observations)
        )
    replaced = observations.copy()
    replaced[rows] = [finals[row] for row in rows]
    return replaced


def _parts(finals: Any, key: Any) -> list[Any]:
    return [None if final is None else final[key] for final in finals]


def _joined(steps: Sequence[Columns]) -> Columns:
    return {name: _concatenated([step[name] for step in steps]) for name in steps[0]}


def _concatenated(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _concatenated([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        return tuple(_concatenated(group) for group in zip(*parts, strict=True))
    if isinstance(first, numpy.ndarray):
        return numpy.concatenate(parts)
    import torch

    return torch.cat(list(parts))


def _rows(column: Any, kept: Any) -> Any:
    if isinstance(column, Mapping):
        return {name: _rows(part, kept) for name, part in column.items()}
    if isinstance(column, tuple):
        return tuple(_rows(part, kept) for part in column)
    return column[kept]
