"""Decides when a run ends before its last step: updates, episodes, time, a metric, evaluations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from rlplug.config.condition import parse_condition
from rlplug.config.sections import RunConfig
from rlplug.errors import did_you_mean
from rlplug.evaluation import BestTracker
from rlplug.feeds import Experience
from rlplug.quantities import format_number

__all__ = ["Limits"]

_LOG = logging.getLogger("rlplug")


class Limits:
    """The limits of `[run]` besides steps, and those of `[evaluation]`.

    `collected` is called after every collection, `reached` before the next one. Methods that may
    end the run return the reason, or an empty string. `judge` is asked after each evaluation but
    the last whether the run is to end, and why.
    """

    def __init__(self, config: RunConfig, judge: Callable[[Mapping[str, float]], str]) -> None:
        section = config.run
        self._section, self._judge = section, judge
        self._condition = parse_condition(section.stop_when) if section.stop_when else None
        self.is_counting = bool(section.max_updates or section.max_episodes or section.max_minutes)
        """Whether `collected` and `reached` must be called."""
        self._episodes = 0

    def collected(self, experience: Experience) -> None:
        """Count the episodes of a collection."""
        if self._section.max_episodes:
            self._episodes += self._count(experience)

    def _count(self, experience: Experience) -> int:
        ended = experience.ended()
        if experience.stepped is not None:
            ended = ended & experience.grid(experience.stepped)
        return int(ended.sum())

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
        """Compare the metrics of a report, or of an evaluation, with `run.stop_when`."""
        condition = self._condition
        if condition is None or condition.metric not in metrics:
            return ""
        value = metrics[condition.metric]
        if not condition.holds(value):
            return ""
        said = f"{condition.metric} = {format_number(value)}"
        return f"{said} (run.stop_when = {self._section.stop_when!r})"

    def evaluated(self, metrics: Mapping[str, float], best: BestTracker) -> str:
        """The same for an evaluation, which also has limits of its own."""
        return best.stop_reason(metrics) or Limits.reported(self, metrics) or self._judge(metrics)

    def finish(self, metrics: Mapping[str, float]) -> None:
        """Warn if the metric of `run.stop_when` is not among all metrics of the run."""
        if self._condition is not None and self._condition.metric not in metrics:
            name = self._condition.metric
            guess = did_you_mean(name, metrics)
            said = "rlplug: run.stop_when had no effect: %r was never reported%s"
            _LOG.warning(said, name, f", {guess}" if guess else ".")

    def get_state(self) -> dict[str, Any]:
        """State for checkpoints; the trainer counts updates and seconds."""
        return {"episodes": self._episodes}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._episodes = saved["episodes"]
