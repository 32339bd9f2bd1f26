"""The options of `[tune]`: how `rlplug tune` searches for the options of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlplug.config.option import at_least, one_of, option

__all__ = ["TuneSection"]


@attrs.frozen(kw_only=True)
class TuneSection:
    """Of `rlplug tune`, which searches for options; `rlplug run` ignores them."""

    trials: int = option(
        20, "Number of trials of the study, as --trials; failed and pruned ones count.", at_least(1)
    )
    space: Mapping[str, Any] = option(
        dict,
        "The options to search: learning_rate = { low = 1e-5, high = 1e-2, log = true }, "
        "n_epochs = { low = 3, high = 20 }, net_arch = { choices = [[64, 64], [256, 256]] }; "
        'also "sampling.num_envs" and the like, and step.',
        factory=True,
    )
    seeds: int | str = option(
        "", "Seeds of each trial, as --seeds: 3 (0 to 2), 0-4, or 1,2,5; empty: that of the run."
    )
    metric: str = option(
        "",
        "Metric to optimize, its last value; empty: the return of the best evaluation, or "
        "what the run has in its place.",
    )
    direction: str = option(
        "",
        "maximize or minimize; empty: minimize a metric with regret or loss in its name, "
        "maximize any other.",
        one_of(("", "maximize", "minimize")),
    )
    sampler: str = option(
        "tpe", "Optuna's sampler: tpe, random, gp, qmc, cmaes, or grid (all combinations)."
    )
    sampler_options: Mapping[str, Any] = option(
        dict, "Arguments of the sampler: { n_startup_trials = 5 }.", factory=True
    )
    pruner: str = option(
        "median",
        "Optuna's pruner, asked after each evaluation whether the trial ends: median, "
        "percentile, successive_halving, hyperband, threshold, or none.",
    )
    pruner_options: Mapping[str, Any] = option(
        dict, "Arguments of the pruner: { n_startup_trials = 3 }.", factory=True
    )
    seed: int = option(0, "Seed of the sampler.", at_least(0))

    @property
    def maximizes(self) -> bool:
        """Whether larger is better."""
        if self.direction:
            return self.direction == "maximize"
        return not any(word in self.metric for word in ("regret", "loss"))
