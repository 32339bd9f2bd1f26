"""What arrives from workers: steps, and what was lost with a worker that failed."""

from __future__ import annotations

from typing import Any

import attrs

from rlplug.envs.workers.worker import Failure
from rlplug.errors import EnvironmentFailedError

__all__ = ["Lost", "Received"]


@attrs.frozen(eq=False)
class Lost:
    """Environments whose worker failed."""

    failure: Failure
    name: str
    num_envs: int
    envs: range
    when: str = ""
    """Such as " after 200 steps"."""

    @property
    def what(self) -> str:
        """What happened, in one sentence."""
        failure = self.failure
        which = f" ({failure.env + 1} of {self.num_envs})" if self.num_envs > 1 else ""
        where = f"{failure.method}{self.when}"
        return f"environment {self.name!r}{which} failed in {where}: {failure.message}."

    @property
    def where(self) -> str:
        """The traceback of what was raised; empty without one."""
        traceback = self.failure.traceback.rstrip()
        return f"In the worker process:\n{traceback}" if traceback else ""

    def error(self, restarts: int = 0) -> EnvironmentFailedError:
        """The error that ends a run."""
        after = f"after {restarts:,} replacements of workers, " if restarts else ""
        error = EnvironmentFailedError(
            after + self.what,
            "try: fix the environment (--debug shows where)",
        )
        if self.where:
            error.add_note(self.where)
        return error


@attrs.frozen(eq=False)
class Received:
    """Steps that were taken, and environments that were lost."""

    envs: list[int] = attrs.field(factory=list)
    infos: list[tuple[int, dict[str, Any]]] = attrs.field(factory=list)
    """Of these environments, and of lost ones after their reset."""
    lost: list[Lost] = attrs.field(factory=list)

    def add(self, later: Received) -> None:
        """Add what was received later."""
        for lost in later.lost:
            self.lose(lost)
        self.envs.extend(later.envs)
        self.infos.extend(later.infos)

    def lose(self, lost: Lost) -> None:
        """Add lost environments; their rows in shared memory are of their new episodes."""
        self.envs[:] = [env for env in self.envs if env not in lost.envs]
        self.infos[:] = [one for one in self.infos if one[0] not in lost.envs]
        self.lost.append(lost)
