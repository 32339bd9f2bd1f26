"""How an evaluation compares with those before it, and whether it ends the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlplug.config.sections import EvaluationSection

__all__ = ["Standing"]


class Standing:
    """Remembers the best evaluation of a run."""

    def __init__(self, section: EvaluationSection) -> None:
        self._section = section
        self.best = -math.inf
        self.best_step = 0
        self.without_better = 0
        """Evaluations since the best one."""

    @property
    def found(self) -> tuple[int, float] | None:
        """Step and mean return of the best; None before any evaluation."""
        return (self.best_step, self.best) if self.best > -math.inf else None

    def take(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether this one is better than all before; one that is not a number never is."""
        value = metrics["eval/return_mean"]
        if value > self.best:
            self.best, self.best_step, self.without_better = value, step, 0
            return True
        self.without_better += 1
        return False

    def verdict(self, metrics: Mapping[str, float]) -> str:
        """Why the run should end after the evaluation taken last; empty if it should go on."""
        value, wanted = metrics["eval/return_mean"], self._section.stop_at_return
        if value >= wanted:
            return f"mean return {value:,.4g} reached evaluation.stop_at_return = {wanted:,.4g}"
        patience = self._section.patience
        if patience and self.without_better >= patience:
            times = f"{patience} evaluations" if patience > 1 else "one evaluation"
            return (
                f"{times} without a better mean return than {self.best:,.4g} at step "
                f"{self.best_step:,} (evaluation.patience = {patience})"
            )
        return ""

    def get_state(self) -> dict[str, Any]:
        """What the next evaluation is compared with."""
        return {
            "best": self.best,
            "best_step": self.best_step,
            "without_better": self.without_better,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.best = float(saved["best"])
        self.best_step = int(saved["best_step"])
        self.without_better = int(saved["without_better"])
