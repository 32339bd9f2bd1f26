"""What every source of experience has: rows, and where it is in its environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlplug.envs import Environments
from rlplug.envs.saving import SavedEnvironments
from rlplug.errors import EnvironmentFailedError
from rlplug.plugin import DEFAULT_MODULE, Acted, ActInput
from rlplug.sampling.actions import action_clipper
from rlplug.sampling.checks import EnvironmentChecks, one_of
from rlplug.spaces import ACTION_MASK

__all__ = ["Rows", "Source"]


class Rows:
    """What the rows of one module see, and what they were answered in the last step.

    A row is an environment or, of several agents, an agent of an environment.
    """

    def __init__(self, num: int, stored: int = 0) -> None:
        self.num = num
        self.stored = stored or num
        """Rows of what is stored: a team has one in each environment."""
        self.turns: Any = None
        """Rows to act next; None: all."""
        self.others: list[tuple[Callable[[ActInput], Acted], Any]] = []
        """Other policies that act, for rows which are not learned from."""
        self.seen: Any = None
        """Observations to act on, not normalised."""
        self.mask: Any = None
        self.rewards: Any = None
        self.terminated: Any = None
        self.truncated: Any = None
        self.stepped: Any = None
        """False where an environment only reset; None: all stepped."""
        self.ends: Any = None
        """Of tensors, the observations after the step where episodes ended."""
        self.answered: Any = None
        """Rows whose last action is answered; None: all."""
        self.restarted: Any = None
        """Rows whose recurrent state begins anew; None: none."""
        self.finals: list[tuple[Any, dict[str, Any]]] = []
        """Rows whose episode ended, and their last observations and masks."""
        self.infos: Mapping[str, Any] = {}

    def stored_of(self, which: Any, columns: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The stored rows of those that acted, and their columns."""
        return which, columns

    @property
    def current(self) -> dict[str, Any]:
        """The observations that are stored, and their mask."""
        if self.mask is None:
            return {"observations": self.seen}
        return {"observations": self.seen, ACTION_MASK: self.mask}


class Source:
    """Environments that are stepped: of one vector, of workers, games, or tensors."""

    in_step = True
    """Whether all rows are answered together."""
    step_into: Any = None
    """Writes the next step into arrays of the caller, where environments can."""
    is_watched = True
    """Whether steps that take long are told: workers have a limit of their own."""

    def __init__(self, environments: Environments, during: str = "") -> None:
        num = environments.num_envs
        self.own = Rows(num)
        self.rows: Mapping[str, Any] = {DEFAULT_MODULE: self.own}
        """Those of each module."""
        self.checks = EnvironmentChecks(
            environments.name, num, environments.action_space, during=during
        )
        self.timestep = 0
        """Steps of the run before those that are taken, for messages."""
        self.doing = ""
        """`step` or `reset` while environments do that."""
        self.step_seconds = 0.0
        """Seconds that the environments took for their steps."""
        self.clip = action_clipper(environments.action_space, environments.device)
        self.actions: Any = None
        """Those of the next step."""
        self.environments = environments

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        raise NotImplementedError

    def ready(self) -> None:
        """Look whose turn it is; unless all rows always act."""

    def send(self, module_id: str, which: Any, actions: Any) -> None:
        """Take the actions of these rows of a module, or of all."""
        self.actions = actions

    def recv(self, max_wait: float | None = None) -> None:
        """Wait for the answers of a step, at most so many seconds where not all are waited for."""
        raise NotImplementedError

    def save(self, beside: Any) -> SavedEnvironments:
        """The environments and what belongs to their step, or why they cannot be saved."""
        raise NotImplementedError

    def restore(self, pickled: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        raise NotImplementedError

    def checks_of(self, module_id: str) -> EnvironmentChecks:
        """The checks of what is stored of a module."""
        return self.checks

    def failed(self, error: BaseException) -> EnvironmentFailedError:
        """The error for what an environment raised while it did what it does."""
        index, method = self.fault()
        which = "" if index is None else one_of(index, self.environments.num_envs)
        return self.checks.failed(which, method, self.timestep, error)

    def fault(self) -> tuple[int | None, str]:
        """The environment that raised, if it is known, and in what."""
        index, method = getattr(self.environments.vector, "failed", None) or (None, self.doing)
        return index, method

    def take_metrics(self) -> dict[str, float]:
        """Metrics since the last call."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """What the next report depends on."""
        return {}

    def set_state(self, saved: Mapping[str, Any]) -> str:
        """Restore a state; returns why environments cannot be, or nothing."""
        return ""
