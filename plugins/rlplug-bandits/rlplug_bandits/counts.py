"""What bandits without a context know: how often each arm was chosen, and what it earned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlplug import Acted, ActInput, Module
from rlplug.bandits.probability import allowed_arms
from rlplug.batch.nested import first_leaf
from rlplug.errors import RequestError, RunFailedError
from rlplug.nn import masked
from rlplug.quantities import is_number, is_whole_number
from rlplug.spaces import real_numbers, whole_numbers

__all__ = ["ArmCounts", "Floats", "highest"]

Floats = NDArray[numpy.float64]

_ROUNDING = 1e-9
"""By how much a mean reward may leave its bounds."""

_SMALLEST = 1e-30
"""Of a probability that was found to be 0 by rounding."""


class ArmCounts(Module):
    """Weight, and sum of rewards, of every arm; a rule of choice defines `scores`.

    It can be used without a run: `choose`, `update`.
    """

    weight: Tensor
    """Number of rows of each arm; a row of weight w counts as w rows."""
    total: Tensor
    """Sum of rewards of each arm."""

    lowest_reward = -numpy.inf
    highest_reward = numpy.inf
    """What rewards the rule is made for."""

    exploration: Tensor
    """The option that may follow a schedule: alpha, epsilon or the temperature."""

    def __init__(self, num_arms: int, initial_value: float = 0.0, exploration: float = 0.0) -> None:
        super().__init__()
        if not is_whole_number(num_arms) or num_arms < 1:
            raise RequestError(
                f"rlplug-bandits: num_arms must be a whole number from 1 on, found {num_arms!r}.",
                "try: the number of arms that can be chosen",
            )
        self.num_arms = num_arms
        self.initial_value = initial_value
        self.register_buffer("exploration", torch.tensor(float(exploration), dtype=torch.float64))
        self.register_buffer("weight", torch.zeros(num_arms, dtype=torch.float64))
        self.register_buffer("total", torch.zeros(num_arms, dtype=torch.float64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.half()` and `.float()` would round the sums: they move buffers, but keep their dtype.
        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call] # torch leaves it untyped
        return self

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        weight, total = (state_dict.get(prefix + name) for name in ("weight", "total"))
        if weight is not None and total is not None and weight.shape == total.shape:
            slack = _ROUNDING * weight
            low, high = self.lowest_reward * weight, self.highest_reward * weight
            outside = (total < low - slack) | (total > high + slack)
            if bool(outside.any()):
                arm = int(outside.nonzero()[0])
                raise RequestError(
                    f"rlplug-bandits: the saved rewards of arm {arm} sum up to {float(total[arm])} "
                    f"over {float(weight[arm]):g} rows, {type(self).__name__} takes rewards from "
                    f"{self.lowest_reward:g} to {self.highest_reward:g}.",
                    "nothing was changed; try: the rule that the counts were saved by",
                )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def scores(self, rows: int, random: numpy.random.Generator) -> Floats:
        """What arms are chosen by, (arms,) or (rows, arms); the highest is chosen."""
        raise TypeError(f"{type(self).__name__} must define scores")

    def probabilities(self, rows: int, mask: Any = None) -> Floats:
        """With which each arm is chosen, (rows, arms)."""
        raise TypeError(f"{type(self).__name__} must define probabilities")

    def counts(self) -> Floats:
        """The weight of each arm."""
        weight: Floats = self.weight.cpu().numpy().copy()
        return weight

    def means(self) -> Floats:
        """Mean reward of each arm; `initial_value` where there are none."""
        counts, totals = self.counts(), self.total.cpu().numpy()
        means: Floats = numpy.where(
            counts > 0, totals / numpy.where(counts > 0, counts, 1.0), self.initial_value
        )
        return means

    # -- acting --------------------------------------------------------------------------------

    def forward_exploration(self, act: ActInput) -> Acted:
        """The arms of the highest scores; ties are broken by `act.random`."""
        rows = _rows(act.observations)
        arms = highest(self.scores(rows, act.random), rows, act.action_mask, act.random)
        extras: dict[str, Any] = {"pred_label": self.means()[arms]}
        if act.wants_log_prob:
            chosen = self.probabilities(rows, act.action_mask)[numpy.arange(rows), arms]
            extras["log_prob"] = numpy.log(numpy.maximum(chosen, _SMALLEST)).astype(numpy.float32)
        return Acted(arms, extras=extras)

    def action_probabilities(self, act: ActInput) -> Floats:
        """With which each arm is chosen, (n, arms)."""
        return self.probabilities(_rows(act.observations), act.action_mask)

    def forward_inference(self, act: ActInput) -> Acted:
        """The arm of the highest mean reward; of equal ones, the first."""
        return Acted(highest(self.means(), _rows(act.observations), act.action_mask, None))

    def forward_export(self, act: ActInput) -> Acted:
        """The arm of the highest mean reward, in torch."""
        initial = torch.full_like(self.total, self.initial_value)
        means = torch.where(self.weight > 0, self.total / self.weight, initial)
        rows = first_leaf(act.observations).shape[0]
        return Acted(masked(means.expand(rows, -1), act.action_mask).argmax(1))

    def choose(
        self, rows: int, random: numpy.random.Generator, action_mask: Any = None
    ) -> NDArray[numpy.int64]:
        """So many choices, (rows,), among the arms that the mask (rows, arms) allows."""
        if not is_whole_number(rows) or rows < 0:
            found = repr(rows) if is_number(rows) else f"a {type(rows).__name__}"
            raise RequestError(
                f"rlplug-bandits: choose takes the number of choices, found {found}.",
                "try: len(observations), which are not read",
            )
        return highest(self.scores(rows, random), rows, action_mask, random)

    # -- learning ------------------------------------------------------------------------------

    def update(self, arms: Any, rewards: Any, weights: Any = None) -> None:
        """Learn the rewards of the chosen arms; a row of weight w counts as w such rows."""
        self.absorb(self.statistics(arms, rewards, weights))

    # Rows whose sums are not finite raise an error of their own.
    @numpy.errstate(over="ignore", invalid="ignore")
    def statistics(self, arms: Any, rewards: Any, weights: Any = None) -> list[Tensor]:
        """Weight and sum of rewards of each arm in these rows."""
        arms = whole_numbers(arms, "rlplug-bandits: arm").reshape(-1)
        rewards = _column("rewards", rewards)
        weights = numpy.ones(len(rewards)) if weights is None else _column("weights", weights)
        self._check(arms, rewards, weights)
        count = self.num_arms
        sums = (
            numpy.bincount(arms, weights, minlength=count),
            numpy.bincount(arms, weights * rewards, minlength=count),
        )
        # Sums that can be squared stay finite, however many are added.
        if not math.isfinite(sum(numpy.vdot(one, one) for one in sums)):
            raise RunFailedError(
                "rlplug-bandits: rewards and weights are finite, but too large to be summed.",
                "nothing was changed; try: scale the rewards",
            )
        return [torch.from_numpy(one).to(self.weight.device) for one in sums]

    def absorb(self, statistics: list[Tensor]) -> None:
        """Add the statistics of rows, of several learners perhaps."""
        weight, total = statistics
        self.weight += weight
        self.total += total

    def _check(self, arms: Any, rewards: Floats, weights: Floats) -> None:
        if not len(arms) == len(rewards) == weights.size:
            raise RunFailedError(
                f"rlplug-bandits: {len(rewards)} rewards were given for {len(arms)} arms, "
                f"with {weights.size} weights.",
                "try: one value per row",
            )
        low, high = self.lowest_reward, self.highest_reward
        for name, column, valid, wanted in (
            ("arm", arms, (arms >= 0) & (arms < self.num_arms), f"0 to {self.num_arms - 1}"),
            ("weight", weights, (weights >= 0) & (weights < numpy.inf), "at least 0"),
            ("reward", rewards, numpy.isfinite(rewards), "a finite number"),
            ("reward", rewards, (rewards >= low) & (rewards <= high), f"{low:g} to {high:g}"),
        ):
            if not valid.all():
                row = int(valid.argmin())
                raise RunFailedError(
                    f"rlplug-bandits: the {name} of row {row} is {column[row]}, "
                    f"{type(self).__name__} takes {wanted}.",
                    "nothing was changed; try: scale the rewards, or thompson with "
                    "distribution = 'gaussian'"
                    if name == "reward" and wanted != "a finite number"
                    else "nothing was changed; try: leave such rows out",
                )


def highest(
    values: Floats, rows: int, mask: Any, random: numpy.random.Generator | None
) -> NDArray[numpy.int64]:
    """The arm of the highest value in each row, of those that the mask allows.

    Ties are broken uniformly at random; without a generator, in favour of the first arm.
    """
    values = numpy.broadcast_to(values, (rows, values.shape[-1]))
    if mask is not None:
        values = numpy.where(allowed_arms(mask, values.shape), values, -numpy.inf)
    if random is None:
        first: NDArray[numpy.int64] = values.argmax(1)
        return first
    tied = values == values.max(1, keepdims=True)
    drawn: NDArray[numpy.int64] = numpy.where(tied, random.random(values.shape), -1.0).argmax(1)
    return drawn


def _column(name: str, values: Any) -> Floats:
    """One number per row."""
    return real_numbers(values, f"rlplug-bandits: {name}").reshape(-1)


def _rows(observations: Any) -> int:
    return len(first_leaf(observations))
