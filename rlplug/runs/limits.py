"""Decides when a run ends before its last step: updates, episodes, time, a metric, evaluations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy

from rlplug.config.condition import parse_condition
from rlplug.config.sections import RunConfig
from rlplug.errors import ConfigError, Problem, did_you_mean
from rlplug.evaluation import BestTracker, EvaluationResult
from rlplug.feeds import Experience
from rlplug.quantities import format_number

__all__ = ["Limits", "check_stop_when"]

_LOG = logging.getLogger("rlplug")


class Limits:
    """The limits of `[run]` besides steps, and those of `[evaluation]`.

    `collected` is called after every collection, `reached` before the next one. Methods that may
    end the run return the reason, or an empty string.
    """

    def __init__(self, config: RunConfig) -> None:
        section = config.run
        self.judge: Callable[[Mapping[str, float]], str] = lambda metrics: ""
        """Asked after each evaluation but the last whether the run is to end, and why."""
        self._section = section
        self._condition = parse_condition(section.stop_when) if section.stop_when else None
        self.is_counting = bool(section.max_updates or section.max_episodes or section.max_minutes)
        """Whether `collected` and `reached` must be called."""
        self._episodes = 0

    def collected(self, experience: Experience) -> None:
        """Count the episodes of a collection."""
        if self._section.max_episodes:
            self._episodes += self._count(experience)

    def _count(self, experience: Experience) -> int:
        return _episodes_in(experience)

    def reached(self, updates: int, seconds: float) -> str:
        """Compare the run so far with its limits; after a resume, all parts of the run count."""
        section = self._section
        if section.max_episodes and self._episodes >= section.max_episodes:
            return f"{self._episodes:,} episodes (run.max_episodes = {section.max_episodes:,})"
        if section.max_updates and updates >= section.max_updates:
            return f"{updates:,} updates (run.max_updates = {section.max_updates:,})"
        if section.max_minutes and seconds >= 60 * section.max_minutes:
            minutes = format_number(section.max_minutes)
            return f"{format_number(seconds / 60)} minutes (run.max_minutes = {minutes})"
        return ""

    def reported(self, metrics: Mapping[str, float]) -> str:
        """Compare the metrics of a report with `run.stop_when`."""
        return self._holding(metrics)

    def _holding(self, metrics: Mapping[str, float]) -> str:
        condition = self._condition
        if condition is None:
            return ""
        found = metrics.get(condition.metric)
        if found is None or not condition.holds(found):
            return ""
        shown = format_number(found)
        return f"{condition.metric} = {shown} (run.stop_when = {self._section.stop_when!r})"

    def evaluated(self, metrics: Mapping[str, float], best: BestTracker) -> str:
        """The same for an evaluation, which also has limits of its own."""
        return best.stop_reason(metrics) or self._holding(metrics) or self.judge(metrics)

    def finish(self, metrics: Mapping[str, float]) -> None:
        """Warn if the metric of `run.stop_when` is not among all metrics of the run."""
        condition = self._condition
        if condition is None or condition.metric in metrics:
            return
        guess = did_you_mean(condition.metric, metrics)
        _LOG.warning(
            "rlplug: run.stop_when = %r had no effect: %r was never reported%s",
            self._section.stop_when,
            condition.metric,
            f", {guess}" if guess else ".",
        )

    def get_state(self) -> dict[str, Any]:
        """State for checkpoints; the trainer counts updates and seconds."""
        return {"episodes": self._episodes}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._episodes = saved["episodes"]


def _episodes_in(experience: Experience) -> int:
    ended = experience.ended()
    if experience.stepped is not None:
        ended = ended & experience.grid(experience.stepped)
    return int(ended.sum())


def check_stop_when(config: RunConfig) -> None:
    """Refuse a condition on an evaluation that does not exist."""
    if not config.run.stop_when:
        return
    metric = parse_condition(config.run.stop_when).metric
    evaluation = config.evaluation
    problem = ""
    if metric.startswith("eval/"):
        # One episode that was cut off: all metrics there are.
        known = EvaluationResult(numpy.ones(1), numpy.ones(1), cut=1).metrics()
        if metric not in known:
            guess = did_you_mean(metric, known)
            problem = f"there is no metric {metric!r}" + (f", {guess}" if guess else "")
        elif not (evaluation.episodes and 0 < evaluation.every < config.run.steps):
            problem = (
                "there is no evaluation before the end of the run (evaluation.episodes = "
                f"{evaluation.episodes}, evaluation.every = {evaluation.every:,})"
            )
    if problem:
        raise ConfigError(
            "the options",
            [Problem("run.stop_when", problem)],
            "try: --set evaluation.episodes=10 --set "
            f"evaluation.every={max(config.run.steps // 10, 1)}"
            if problem.startswith("there is no evaluation")
            else "see: rlplug plugins show evaluation",
        )
