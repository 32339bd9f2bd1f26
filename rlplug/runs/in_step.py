"""The training loop of one of several learners, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from rlplug.config.sections import RunConfig
from rlplug.feeds import Experience
from rlplug.runs.limits import Limits
from rlplug.runs.signals import Interrupted, Interrupts
from rlplug.scale.ranks import Ranks
from rlplug.trainer import Trainer

__all__ = ["FirstTasks", "RankLimits", "RankTrainer"]


class RankTrainer(Trainer):
    """Counts the steps of all learners, and goes in step with them."""

    def __init__(self, ranks: Ranks, interrupts: Interrupts, *made: Any, **options: Any) -> None:
        super().__init__(*made, **options, stop=self._stop_in_step)
        self._ranks, self._interrupts = ranks, interrupts

    def _stop_in_step(self) -> None:
        """End the loop, or save, where the first learner got the signal for it."""
        ranks = self._ranks
        if ranks.signal:
            raise Interrupted(ranks.signal)
        if ranks.is_asked:
            ranks.due = 0
            if ranks.is_first:
                self._interrupts.checkpoint()

    def run(self) -> None:
        """Train, until all have taken the steps, or one has failed."""
        with self._together():
            self._exchange(0)
            self._ranks.in_step = True
            super().run()

    def finish(self) -> None:
        """The last report, evaluation and checkpoint."""
        with self._together():
            super().finish()
        self._ranks.in_step = False

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Raise which learner died, if that is what an error comes from."""
        try:
            yield
        except BaseException as error:
            self._ranks.in_step = False
            lost = self._ranks.lost(error) if self._ranks.is_first else None
            if lost is not None:
                raise lost from error
            raise

    def report(self) -> Mapping[str, float]:
        """The same metrics in all learners: schedulers may follow them."""
        metrics = super().report()
        if self._ranks.in_step and metrics:
            metrics = self._ranks.tell(dict(metrics))
        return metrics

    def _count(self, experience: Experience) -> int:
        return self._exchange(experience.count)

    def _exchange(self, count: int) -> int:
        if not self._ranks.is_first:
            return self._ranks.exchange(count)
        signal, asked = self._interrupts.poll()
        periodic = self.periodic
        due = periodic.tasks.due if isinstance(periodic, FirstTasks) else 0
        return self._ranks.exchange(count, signal=signal, asked=asked, due=due)


class RankLimits(Limits):
    """Counts the episodes of all learners; the clock and the metrics are the first one's."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        super().__init__(config)
        self._ranks = ranks

    def reached(self, updates: int, seconds: float) -> str:
        """Why the run ends, or an empty string."""
        return str(self._ranks.tell(super().reached(updates, seconds)))

    def reported(self, metrics: Mapping[str, float]) -> str:
        """The same after a report."""
        if self._condition is None:
            return ""
        return str(self._ranks.tell(super().reported(metrics)))

    def _count(self, experience: Experience) -> int:
        return int(self._ranks.sum([super()._count(experience)])[0])


class FirstTasks:
    """The first learner's evaluations and checkpoints, which all come to at the same step."""

    def __init__(self, tasks: Any, ranks: Ranks) -> None:
        self.tasks, self._ranks = tasks, ranks

    @property
    def due(self) -> int:
        """The step from which on `reached` is called, as all have been told."""
        return self._ranks.due

    @due.setter
    def due(self, step: int) -> None:
        self.tasks.due = step

    @property
    def evaluate_seconds(self) -> float:
        """Seconds that evaluations and their videos took."""
        return float(self.tasks.evaluate_seconds)

    def reached(self, step: int, metrics: MutableMapping[str, float]) -> str:
        """Do what is due while the others wait, and tell them what has come of it."""
        before = self.tasks.evaluation
        reason: str = self.tasks.reached(step, metrics)
        evaluation = self.tasks.evaluation
        new = {} if evaluation is before else dict(evaluation)
        self._ranks.tell(("done", (reason, new)))
        return reason

    def finish(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """Do what is due at the end of the run."""
        self.tasks.finish(step, metrics)
        self._ranks.tell(("done", ("", {})))

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile of evaluations."""
        self.tasks.record_phases(record)
