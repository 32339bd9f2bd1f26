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

    trials: int = option(20, "Trials of the study, as --trials; failed ones count.", at_least(1))
    space: Mapping[str, Any] = option(
        dict,
        "What to search: n = { low = 3, high = 20 }, m = { choices = [1, 2] }, log, step.",
        factory=True,
    )
    seeds: int | str = option(
        "", "Seeds of each trial: 3 (0 to 2), 0-4, or 1,2,5; empty: run.seed."
    )
    metric: str = option("", "Metric to optimize; empty: the best evaluation.")
    direction: str = option(
        "",
        "Empty: minimize metrics named regret or loss, maximize others.",
        one_of(("", "maximize", "minimize")),
    )
    sampler: str = option("tpe", "tpe, random, gp, qmc, cmaes, or grid (all combinations).")
    sampler_options: Mapping[str, Any] = option(
        dict, "Arguments of the sampler: { n_startup_trials = 5 }.", factory=True
    )
    pruner: str = option(
        "median", "median, percentile, successive_halving, hyperband, threshold, none."
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
