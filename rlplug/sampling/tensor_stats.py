"""Episode statistics and checks that stay on a device until they are reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlplug.batch.nested import leaves
from rlplug.errors import EnvironmentFailedError

__all__ = ["TensorChecks", "TensorEpisodeStats"]

_BAD = (
    "a reward that is not a finite number",
    "an observation that is not a finite number",
    "an action mask that forbids every action",
)


class TensorEpisodeStats:
    """Adds up rewards, returns and lengths on the device; `take` reads six numbers at once."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        # MPS has no float64.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._running = torch.zeros(num_envs, dtype=self._dtype, device=device)
        self._length = torch.zeros_like(self._running)
        self._sums = torch.zeros(6, dtype=self._dtype, device=device)
        """Rewards, steps, returns of ended episodes, their lengths, their number; ends without a
        final observation."""

    def add(
        self, rewards: Tensor, ended: Tensor, stepped: Tensor | None, unknown: Tensor | None
    ) -> None:
        """Add one step; `stepped` is False where it only reset, `unknown` where a final
        observation was wanted and not given."""
        earned = rewards.to(self._dtype)
        if stepped is None:
            taken = torch.ones_like(earned)
        else:
            taken = stepped.to(self._dtype)
            earned = torch.where(stepped, earned, 0.0)
        self._running += earned
        self._length += taken
        ends = ended.to(self._dtype)
        lost = torch.zeros_like(ends) if unknown is None else unknown.to(self._dtype)
        of_each = (earned, taken, self._running * ends, self._length * ends, ends, lost)
        self._sums += torch.stack(of_each).sum(1)
        self._running *= 1 - ends
        self._length *= 1 - ends

    def take(self) -> tuple[dict[str, float], int]:
        """The metrics since the last call, and how many final observations were not given."""
        rewards, steps, returns, lengths, episodes, unknown = self._sums.tolist()
        self._sums.zero_()
        metrics = {}
        if steps:
            metrics["rollout/reward_mean"] = rewards / steps
        if episodes:
            metrics["rollout/return_mean"] = returns / episodes
            metrics["rollout/length_mean"] = lengths / episodes
        return metrics, int(unknown)

    def forget_episodes(self) -> None:
        """Start the episodes over, after all environments were reset."""
        self._running.zero_()
        self._length.zero_()

    def get_state(self) -> dict[str, Any]:
        """What was added up since the last report, and the episodes in progress."""
        return {name: one.cpu().clone() for name, one in self._all().items()}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        for name, one in self._all().items():
            one.copy_(saved[name])

    def _all(self) -> dict[str, Tensor]:
        return {"running": self._running, "length": self._length, "sums": self._sums}


class TensorChecks:
    """Notes numbers that are not finite and masks that allow nothing; they are told at a report.

    To read them in every step would wait for the device.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self._bad = torch.zeros(len(_BAD), dtype=torch.bool, device=device)
        self._since = 0

    def add(self, rewards: Tensor, observations: Any, mask: Tensor | None) -> None:
        """Look at what one step gave."""
        self._note(0, rewards)
        self.add_observations(observations, mask)

    def add_observations(self, observations: Any, mask: Tensor | None) -> None:
        """Look at observations."""
        for leaf in leaves(observations):
            self._note(1, leaf)
        if mask is not None:
            self._bad[2] |= ~mask.any(-1).all()

    def raise_if_bad(self, step: int) -> None:
        """Raise for what was noted since the last call."""
        found = self._bad.tolist()
        since, self._since = self._since, step
        self._bad.zero_()
        if any(found):
            which = found.index(True)
            raise EnvironmentFailedError(
                f"environment {self.name!r} gave {_BAD[which]} between steps "
                f"{since:,} and {step:,}.",
                "try: fix the environment",
            )

    def _note(self, which: int, leaf: Tensor) -> None:
        if leaf.is_floating_point():
            self._bad[which] |= ~torch.isfinite(leaf).all()
