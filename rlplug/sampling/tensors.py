"""Environments of tensors as a source: nothing leaves their device, and no step waits for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
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

_BAD = (
    "a reward that is not a finite number",
    "an observation that is not a finite number",
    "an action mask that forbids every action",
)


class TensorSource(Source):
    """Steps a vector environment of tensors.

    Statistics and checks are tensors that are read when they are reported: to read them in every
    step would wait for the device. Where environments reset in a step of their own, that is counted
    as one.
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
        self._only_reset = torch.zeros(num, dtype=torch.bool, device=device)
        """Which environments only reset in their next step."""
        # MPS has no float64.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._episode = torch.zeros((2, num), dtype=self._dtype, device=device)
        """Return and length of the episodes in progress."""
        self._sums = torch.zeros(5, dtype=self._dtype, device=device)
        """Rewards, steps, returns of ended episodes, their lengths, their number."""
        self._bad = torch.zeros(len(_BAD), dtype=torch.bool, device=device)
        self._checked = 0
        """The step up to which what was bad is reported."""
        self._warned = False

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        self._episode.zero_()
        self._only_reset.zero_()
        with self.asking("reset"):
            observations, infos = self.environments.reset(seed)
        self._observe(observations, infos)

    def recv(self) -> None:
        """Step all environments."""
        rows = self.own
        with self.asking("step"):
            outcome = self.step(self.clip(self.actions))
            observations, rewards, terminated, truncated, infos = outcome
        self.timestep += rows.num
        rows.answered, stepped = None, None
        rows.outcome = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        over = ended = terminated | truncated
        if self._next_step:
            over = self._only_reset
            rows.outcome["stepped"] = stepped = ~over
            self._only_reset = ended = ended & stepped
        elif self._keep_finals:
            finals = self._vector.final_observations(infos)
            if finals is not None:
                rows.outcome["ends"] = finals
            elif not self._warned:
                self._warned = True
                _LOG.warning(
                    "rlplug: environment %r gives no infos['final_obs']: the values of episodes "
                    "that it truncates are bootstrapped from the observation before.",
                    self.checks.name,
                )
        rows.restarted = over if self._memory else None
        self._add(rewards, ended, stepped)
        self._observe(observations, infos)

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes since the last call; raises what is not allowed."""
        self._raise_if_bad()
        rewards, steps, returns, lengths, episodes = self._sums.tolist()
        self._sums.zero_()
        metrics = {}
        if steps:
            metrics["rollout/reward_mean"] = rewards / steps
        if episodes:
            metrics["rollout/return_mean"] = returns / episodes
            metrics["rollout/length_mean"] = lengths / episodes
        return metrics

    def get_state(self) -> dict[str, Any]:
        """What was added up since the last report."""
        self._raise_if_bad()
        tally = self._episode.cpu().clone(), self._sums.cpu().clone()
        return {"tally": tally, "device": self._device.type}

    def set_state(self, saved: Mapping[str, Any]) -> str:
        """Restore a state; returns why environments cannot be, or nothing."""
        for column, kept in zip((self._episode, self._sums), saved["tally"], strict=True):
            column.copy_(kept)
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

    def _add(self, rewards: Tensor, ended: Tensor, stepped: Tensor | None) -> None:
        """Add one step; `stepped` is False where it only reset."""
        self._note(0, rewards)
        taken = torch.stack((rewards.to(self._dtype), torch.ones_like(self._episode[0])))
        if stepped is not None:
            taken = torch.where(stepped, taken, 0.0)
        self._episode += taken
        ends = ended.to(self._dtype)
        self._sums += torch.cat((taken, self._episode * ends, ends[None])).sum(1)
        self._episode *= 1 - ends

    def _observe(self, observations: Any, infos: Mapping[str, Any]) -> None:
        mask = infos.get(ACTION_MASK)
        if isinstance(observations, Mapping) and ACTION_MASK in observations:
            mask = observations[ACTION_MASK]
        self.own.seen, self.own.mask = observations, mask
        for leaf in leaves(observations):
            self._note(1, leaf)
        if mask is not None:
            self._bad[2] |= ~mask.any(-1).all()

    def _note(self, which: int, leaf: Tensor) -> None:
        """Note numbers that are not finite."""
        if leaf.is_floating_point():
            self._bad[which] |= ~torch.isfinite(leaf).all()

    def _raise_if_bad(self) -> None:
        """Raise for what was noted since the last call."""
        noted, since, self._checked = self._bad.tolist(), self._checked, self.timestep
        self._bad.zero_()
        if any(noted):
            raise EnvironmentFailedError(
                f"environment {self.checks.name!r} gave {_BAD[noted.index(True)]} between steps "
                f"{since:,} and {self.timestep:,}.",
                "try: fix the environment",
            )
