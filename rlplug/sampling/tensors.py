"""Environments of tensors as a source: nothing leaves their device, and no step waits for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from rlplug.batch.nested import leaves
from rlplug.envs import Environments
from rlplug.envs.saving import EnvironmentSaver, SavedEnvironments, restore_environments
from rlplug.envs.tensors import TensorVector
from rlplug.errors import EnvironmentFailedError
from rlplug.sampling.source import Source
from rlplug.spaces import ACTION_MASK

__all__ = ["TensorSource"]

_LOG = logging.getLogger("rlplug")


class TensorSource(Source):
    """Steps a vector environment of tensors.

    Statistics and checks are tensors that are read when they are reported. Where environments
    reset in a step of their own, that is counted as one.
    """

    def __init__(
        self, environments: Environments, vector: TensorVector, keep_finals: bool, memory: bool
    ) -> None:
        super().__init__(environments)
        num, device = vector.num_envs, vector.device
        self.step: Any = vector.step
        self._vector, self._device = vector, device
        self._next_step = environments.autoreset == AutoresetMode.NEXT_STEP
        self._keep_finals, self._memory = keep_finals, memory
        self._saver = EnvironmentSaver()
        self._tally = _Tally(environments.name, num, device)
        self._only_reset = torch.zeros(num, dtype=torch.bool, device=device)
        """Which environments only reset in their next step."""

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        self._tally.forget_episodes()
        self._only_reset.zero_()
        self.doing = "reset"
        observations, infos = self.environments.reset(seed)
        self.doing = ""
        self._observe(observations, infos)

    def recv(self, max_wait: float | None = None) -> None:
        """Step all environments."""
        rows = self.own
        self.doing, began = "step", perf_counter()
        observations, rewards, terminated, truncated, infos = self.step(self.clip(self.actions))
        self.step_seconds += perf_counter() - began
        self.doing = ""
        self.timestep += rows.num
        rows.rewards, rows.terminated, rows.truncated = rewards, terminated, truncated
        over = ended = terminated | truncated
        unknown = None
        if self._next_step:
            over = self._only_reset
            rows.stepped = ~over
            self._only_reset = ended = ended & rows.stepped
        elif self._keep_finals:
            rows.ends = self._vector.final_observations(infos)
            unknown = truncated if rows.ends is None else None
        rows.restarted = over if self._memory else None
        self._tally.add(rewards, ended, rows.stepped, unknown)
        self._observe(observations, infos)

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes since the last call; raises what is not allowed."""
        self._tally.raise_if_bad(self.timestep)
        return self._tally.take()

    def get_state(self) -> dict[str, Any]:
        """What was added up since the last report."""
        self._tally.raise_if_bad(self.timestep)
        return {"tally": self._tally.get_state(), "device": self._device.type}

    def set_state(self, saved: Mapping[str, Any]) -> str:
        """Restore a state; returns why environments cannot be, or nothing."""
        self._tally.set_state(saved["tally"])
        if saved["device"] == self._device.type:
            return ""
        return f"they were on {saved['device']}, here they are on {self._device.type}"

    def save(self, beside: Any) -> SavedEnvironments:
        """The environments and what belongs to their step, or why they cannot be saved."""
        state = self.own.seen, self.own.mask, self._only_reset, beside
        return self._saver.save(self._vector.inner, state)

    def restore(self, pickled: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        saved = restore_environments(self._vector.inner, pickled)
        self.own.seen, self.own.mask, self._only_reset, beside = saved
        return beside

    def _observe(self, observations: Any, infos: Mapping[str, Any]) -> None:
        mask = infos.get(ACTION_MASK)
        if isinstance(observations, Mapping) and ACTION_MASK in observations:
            mask = observations[ACTION_MASK]
        self.own.seen, self.own.mask = observations, mask
        self._tally.look_at(observations, mask)


_BAD = (
    "a reward that is not a finite number",
    "an observation that is not a finite number",
    "an action mask that forbids every action",
)


class _Tally:
    """Adds up rewards, returns and lengths on the device, and notes what is not allowed.

    To read them in every step would wait for the device.
    """

    def __init__(self, name: str, num_envs: int, device: torch.device) -> None:
        # MPS has no float64.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._episode = torch.zeros((2, num_envs), dtype=self._dtype, device=device)
        """Return and length of the episodes in progress."""
        self._sums = torch.zeros(6, dtype=self._dtype, device=device)
        """Rewards, steps, returns of ended episodes, their lengths, their number; ends without a
        final observation."""
        self._bad = torch.zeros(len(_BAD), dtype=torch.bool, device=device)
        self._name, self._since, self._told = name, 0, False

    def add(
        self, rewards: Tensor, ended: Tensor, stepped: Tensor | None, unknown: Tensor | None
    ) -> None:
        """Add one step; `stepped` is False where it only reset, `unknown` where a final
        observation was wanted and not given."""
        self._note(0, rewards)
        taken = torch.stack((rewards.to(self._dtype), torch.ones_like(self._episode[0])))
        if stepped is not None:
            taken = torch.where(stepped, taken, 0.0)
        self._episode += taken
        ends = ended.to(self._dtype)
        lost = torch.zeros_like(ends) if unknown is None else unknown.to(self._dtype)
        parts = torch.cat((taken, self._episode * ends, torch.stack((ends, lost))))
        self._sums += parts.sum(1)
        self._episode *= 1 - ends

    def look_at(self, observations: Any, mask: Tensor | None) -> None:
        """Look at observations."""
        for leaf in leaves(observations):
            self._note(1, leaf)
        if mask is not None:
            self._bad[2] |= ~mask.any(-1).all()

    def take(self) -> dict[str, float]:
        """The metrics since the last call; warns once of final observations that are not given."""
        rewards, steps, returns, lengths, episodes, unknown = self._sums.tolist()
        self._sums.zero_()
        metrics = {}
        if steps:
            metrics["rollout/reward_mean"] = rewards / steps
        if episodes:
            metrics["rollout/return_mean"] = returns / episodes
            metrics["rollout/length_mean"] = lengths / episodes
        if unknown and not self._told:
            self._told = True
            _LOG.warning(
                "rlplug: environment %r truncates episodes without infos['final_obs']: their "
                "value is bootstrapped from the observation before.",
                self._name,
            )
        return metrics

    def raise_if_bad(self, step: int) -> None:
        """Raise for what was noted since the last call."""
        noted = self._bad.tolist()
        since, self._since = self._since, step
        self._bad.zero_()
        if any(noted):
            raise EnvironmentFailedError(
                f"environment {self._name!r} gave {_BAD[noted.index(True)]} between steps "
                f"{since:,} and {step:,}.",
                "try: fix the environment",
            )

    def forget_episodes(self) -> None:
        """Start the episodes over, after all environments were reset."""
        self._episode.zero_()

    def get_state(self) -> dict[str, Any]:
        """What was added up since the last report, and the episodes in progress."""
        return {"episode": self._episode.cpu().clone(), "sums": self._sums.cpu().clone()}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._episode.copy_(saved["episode"])
        self._sums.copy_(saved["sums"])

    def _note(self, which: int, leaf: Tensor) -> None:
        if leaf.is_floating_point():
            self._bad[which] |= ~torch.isfinite(leaf).all()
