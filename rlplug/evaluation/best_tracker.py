"""Tracks the best evaluation of a run; early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlplug.config.sections import EvaluationSection
from rlplug.quantities import format_number
from rlplug.review.record import rank

__all__ = ["BestTracker"]


class BestTracker:
    """The best evaluation so far, and the criteria that end a run early."""

    def __init__(self, section: EvaluationSection) -> None:
        self._section = section
        self.best = -math.inf
        self.best_step = 0
        self.without_better = 0
        """Evaluations since the best one."""

    @property
    def best_evaluation(self) -> tuple[int, float] | None:
        """Step and mean return of the best evaluation; None before the first."""
        return (self.best_step, self.best) if self.best > -math.inf else None

    def update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Returns whether this evaluation is the best so far; NaN never is."""
        ranked = rank(metrics, step)
        best = rank({**metrics, "eval/return_mean": self.best}, self.best_step)
        if ranked[0] > -math.inf and ranked > best:
            self.best, self.best_step, self.without_better = ranked[0], step, 0
            return True
        self.without_better += 1
        return False

    def stop_reason(self, metrics: Mapping[str, float]) -> str:
        """Why the run should end after the last update; empty if it should go on."""
        value, wanted = metrics["eval/return_mean"], self._section.stop_at_return
        if value >= wanted:
            return (
                f"mean return {format_number(value)} reached evaluation.stop_at_return = "
                f"{format_number(wanted)}"
            )
        patience = self._section.patience
        if patience and self.without_better >= patience:
            times = f"{patience} evaluations" if patience > 1 else "one evaluation"
            return (
                f"{times} without a better mean return than {format_number(self.best)} at step "
                f"{self.best_step:,} (evaluation.patience = {patience})"
            )
        return ""

    def get_state(self) -> dict[str, Any]:
        """State for checkpoints."""
        return {
            "best": self.best,
            "best_step": self.best_step,
            "without_better": self.without_better,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.best = float(saved["best"])
        self.best_step = int(saved["best_step"])
        self.without_better = int(saved["without_better"])
