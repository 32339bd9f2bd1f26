"""Acts for the agents of one module whose turn it is, in one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.envs.agents import AgentRows, AgentVector
from rlplug.envs.agents.team import TeamRows
from rlplug.errors import EnvironmentFailedError
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling.buffers import restarted, rows_of, with_rows
from rlplug.sampling.checks import EnvironmentChecks
from rlplug.sampling.policy_io import action_clipper

__all__ = ["AgentChecks", "AgentInputs"]


class AgentChecks(EnvironmentChecks):
    """Checks of what agents see and get; messages name the agent."""

    def __init__(
        self, environments: Environments, rows: AgentRows | TeamRows, during: str = ""
    ) -> None:
        super().__init__(environments, during)
        self._rows = rows

    def which(self, index: int) -> str:
        """Which agent it is, for messages."""
        return f" ({self._rows.describe(index)})"

    def failed_in(
        self, games: AgentVector, timestep: int, error: BaseException
    ) -> EnvironmentFailedError:
        """The error for an exception that a game raised."""
        index, method = games.failed or (0, "step")
        which = "" if games.num_envs == 1 else f" ({index + 1} of {games.num_envs})"
        return EnvironmentFailedError(
            f"environment {self.name!r}{which} failed in {method} after {timestep:,} "
            f"steps{self.during}: {type(error).__name__}: {error}",
            "try: fix the environment (--debug shows where)",
        )


class AgentInputs:
    """The input of one module's calls: what its agents see, masks, recurrent state."""

    def __init__(
        self,
        rows: AgentRows,
        environments: Environments,
        module: Module,
        *,
        random: numpy.random.Generator,
        normalize: Callable[[Any], Any] | None,
        run_steps: int = 0,
        during: str = "",
    ) -> None:
        self.rows = rows
        self.act = ActInput(None, random=random, steps=run_steps)
        """Input of the module's next call."""
        self.checks = AgentChecks(environments, rows, during)
        self.module = module
        self.initial_state: Any = module.initial_state(1)
        """Recurrent state of one new episode; None for modules without one."""
        self.chosen: list[Any] = [None] * rows.num
        """The last action of each row, as games take it."""
        self._state: Any = None
        """Recurrent state of all rows."""
        self._normalize = normalize
        self._clip = action_clipper(environments.action_space)
        self._action_space = environments.vector.action_space
        self._is_discrete = isinstance(environments.action_space, spaces.Discrete)

    def reset(self) -> None:
        """Begin with fresh episodes everywhere."""
        self._state = self.module.initial_state(self.rows.num)

    def choose(self, choose: Callable[[ActInput], Acted], timestep: int) -> Acted | None:
        """Act for the rows whose turn it is; None if there are none."""
        rows, act = self.rows, self.act
        count = int(numpy.count_nonzero(rows.turns))
        if not count:
            return None
        everyone = count == rows.num
        which = None if everyone else numpy.flatnonzero(rows.turns)
        seen, mask, state = rows.seen, rows.mask, self._state
        if which is not None:
            seen = rows_of(seen, which)
            mask = None if mask is None else mask[which]
            state = None if state is None else rows_of(state, which)
        if mask is not None:
            self.checks.check_mask(mask, None, timestep)
        act.observations = seen if self._normalize is None else self._normalize(seen)
        act.action_mask, act.state, act.timestep = mask, state, timestep
        acted = choose(act)
        if state is not None:
            own = acted.state
            if which is not None:
                own = with_rows(tree_map(_like, self._state, own), which, own)
            self._state = own
        self._keep(acted.actions, which)
        return acted

    def restart(self, ended: list[int]) -> None:
        """Reset the recurrent state of rows whose episode ended."""
        if self._state is not None and ended:
            self._state = restarted(self._state, numpy.array(ended), self.initial_state)

    def get_state(self) -> dict[str, Any]:
        """What the next call depends on beside rows and generators; not a copy."""
        return {"state": self._state}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._state = saved["state"]

    def _keep(self, actions: Any, which: Any) -> None:
        clipped = self._clip(to_arrays(actions))
        each: list[Any]
        if self._is_discrete:
            each = clipped.tolist()
        elif isinstance(clipped, numpy.ndarray):
            each = list(clipped)
        else:
            each = list(iterate(self._action_space, clipped))
        if which is None:
            self.chosen = each
            return
        for row, action in zip(which.tolist(), each, strict=True):
            self.chosen[row] = action


def _like(leaf: Any, new: Any) -> Any:
    """An array if the new one is, else a tensor: fresh states are tensors."""
    return to_arrays(leaf) if isinstance(new, numpy.ndarray) else torch.as_tensor(leaf)
