"""Offline evaluation: a frozen copy of the policy meets each batch before it is learned."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy
import torch

from rlplug.batch.nested import to_arrays
from rlplug.plugin import ActInput, Module

__all__ = ["OfflineEvaluation", "Reduce"]


class Reduce(Protocol):
    """Combines tensors over all learners."""

    def __call__(self, tensors: Sequence[torch.Tensor], op: str = "sum") -> list[torch.Tensor]:
        """Their sums, or the largest ones."""


_SUMS = (
    "rows",
    "accepted",
    "weight",
    "weight_accepted",
    "slates",
    "rewards",
    "rewards_accepted",
    "weighted_rewards",
)


class OfflineEvaluation:
    """Compares the actions of a frozen copy with those of a log (Li et al. 2011).

    Rows where they agree are accepted, with the importance weight 1 / propensity, at most
    `max_weight` unless that is 0; all others have the weight 0. The copy is renewed after each
    `critical_weight` of data. `explores`: the copy acts as in training, not greedily.
    """

    def __init__(
        self,
        module: Module,
        *,
        random: numpy.random.Generator,
        explores: bool,
        max_weight: float = 0.0,
        critical_weight: float = 0.0,
        learners: int = 1,
        reduce: Reduce | None = None,
    ) -> None:
        self._module, self._random, self._explores = module, random, explores
        self._max_weight, self._critical_weight = max_weight, critical_weight
        self._learners, self._reduce = learners, reduce
        self._frozen = self._copy()
        self._since = 0.0
        """Weight of the data since the copy was made, of all learners."""
        self._renewed = 0
        self._sums = numpy.zeros((2, len(_SUMS)))
        """Those since the last report, and of the whole run."""
        self._extremes = numpy.array([-numpy.inf, 0.0])
        """Minus the fewest arms of a row since the last report, and the most."""

    def weigh(self, columns: Mapping[str, Any], timestep: int, num_arms: int) -> Any:
        """The importance weight of each row; 0 where the copy would have acted otherwise."""
        if self._since >= self._critical_weight and self._sums[1, 0]:
            self._frozen, self._since = self._copy(), 0.0
            self._renewed += 1
        mask, rewards = columns.get("action_mask"), columns["rewards"]
        act = ActInput(
            columns["observations"], action_mask=mask, timestep=timestep, random=self._random
        )
        frozen = self._frozen
        choose = frozen.forward_exploration if self._explores else frozen.forward_inference
        with torch.no_grad():
            accepted = to_arrays(choose(act).actions) == columns["actions"]
        importance = accepted / columns["propensity"]
        if self._max_weight:
            importance = numpy.minimum(importance, self._max_weight)
        rows = len(accepted)
        weights = columns.get("weights", numpy.ones(rows))
        slates = numpy.full(rows, num_arms) if mask is None else (mask != 0).sum(1)
        if rows:
            numpy.maximum(self._extremes, [-slates.min(), slates.max()], out=self._extremes)
        effective = weights * importance
        self._sums += (
            rows,
            accepted.sum(),
            weights.sum(),
            effective.sum(),
            slates.sum(),
            rewards.sum(),
            rewards[accepted].sum(),
            effective @ rewards,
        )
        self._since += self._summed([float(weights.sum())])[0]
        return importance

    def take_metrics(self) -> dict[str, float]:
        """Metrics since the last call, and the estimate over the whole run."""
        # Learners without rows join the sums of the others.
        summed = self._summed(self._sums.ravel().tolist())
        extremes = self._summed(self._extremes.tolist(), "max")
        window = dict(zip(_SUMS, summed, strict=False))
        whole = dict(zip(_SUMS, summed[len(_SUMS) :], strict=True))
        own = dict(zip(_SUMS, self._sums[0].tolist(), strict=True))
        if not window["rows"]:
            return {}
        metrics = _metrics(window, "ope")
        if whole["weight_accepted"]:
            metrics["ope/value"] = whole["weighted_rewards"] / whole["weight_accepted"]
        if self._learners > 1 and own["rows"]:
            metrics |= _metrics(own, "ope/local")
        metrics["ope/slate_size_min"], metrics["ope/slate_size_max"] = -extremes[0], extremes[1]
        metrics["ope/renewed"] = float(self._renewed)
        self._sums[0] = 0.0
        self._extremes[:] = -numpy.inf, 0.0
        return metrics

    def get_state(self) -> dict[str, Any]:
        """All that the next weights depend on."""
        return {
            "frozen": {name: part.clone() for name, part in self._frozen.state_dict().items()},
            "random": self._random.bit_generator.state,
            "since": self._since,
            "renewed": self._renewed,
            "sums": self._sums.copy(),
            "slates": self._extremes.copy(),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._frozen = self._copy()
        self._frozen.load_state_dict(saved["frozen"])
        self._random.bit_generator.state = saved["random"]
        self._since, self._renewed = saved["since"], saved["renewed"]
        self._sums[:], self._extremes[:] = saved["sums"], saved["slates"]

    def _copy(self) -> Module:
        frozen = copy.deepcopy(self._module)
        frozen.eval()
        return frozen

    def _summed(self, values: list[float], op: str = "sum") -> list[float]:
        if self._reduce is None or self._learners == 1:
            return values
        (summed,) = self._reduce([torch.tensor(values, dtype=torch.float64)], op)
        return [float(value) for value in summed]


def _metrics(sums: Mapping[str, float], prefix: str) -> dict[str, float]:
    rows, accepted = sums["rows"], sums["accepted"]
    rejected = rows - accepted
    metrics = {
        "accepted_fraction": accepted / rows,
        "reward_all": sums["rewards"] / rows,
        "slate_size_mean": sums["slates"] / rows,
    }
    if accepted:
        metrics["reward_accepted"] = sums["rewards_accepted"] / accepted
        metrics["importance_weight_mean"] = sums["weight_accepted"] / rows
    if rejected:
        metrics["reward_rejected"] = (sums["rewards"] - sums["rewards_accepted"]) / rejected
        metrics["accepted_per_rejected"] = accepted / rejected
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
