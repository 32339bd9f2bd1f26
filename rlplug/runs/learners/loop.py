"""The training loop of one of several learners, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from rlplug.config.sections import RunConfig
from rlplug.feeds import Experience
from rlplug.runs.limits import Limits
from rlplug.runs.periodic import PeriodicTasks
from rlplug.runs.signals import Interrupted, Interrupts
from rlplug.scale.ranks import Ranks
from rlplug.trainer import Trainer

__all__ = ["FirstTasks", "RankLimits", "RankTrainer", "Stop"]


class Stop:
    """Ends the loop, or saves, where the first learner got the signal for it."""

    def __init__(self, ranks: Ranks, interrupts: Interrupts) -> None:
        self._ranks = ranks
        self._interrupts = interrupts

    def __call__(self) -> None:
        if self._ranks.signal:
            raise Interrupted(self._ranks.signal)
        if self._ranks.is_asked:
            self._ranks.due = 0
            if self._ranks.is_first:
                self._interrupts.checkpoint()


class RankTrainer(Trainer):
    """Counts the steps of all learners, and goes in step with them."""

    def __init__(
        self,
        ranks: Ranks,
        interrupts: Interrupts,
        *made: Any,
        **options: Any,
    ) -> None:
        super().__init__(*made, **options, stop=Stop(ranks, interrupts))
        self._ranks = ranks
        self._interrupts = interrupts

    def run(self) -> None:
        """Train, until all have taken the steps, or one has failed."""
        ranks = self._ranks
        try:
            self._exchange(0)
            ranks.in_step = True
            super().run()
        except BaseException as error:
            ranks.in_step = False
            lost = ranks.lost(error) if ranks.is_first else None
            if lost is not None:
                raise lost from error
            raise

    def finish(self) -> None:
        """The last report, evaluation and checkpoint."""
        try:
            super().finish()
        except BaseException as error:
            self._ranks.in_step = False
            lost = self._ranks.lost(error) if self._ranks.is_first else None
            if lost is not None:
                raise lost from error
            raise
        self._ranks.in_step = False

    def report(self) -> Mapping[str, float]:
        """The same metrics in all learners: schedulers may follow them."""
        metrics = super().report()
        if not (self._ranks.in_step and metrics):
            return metrics
        told: Mapping[str, float] = self._ranks.tell(dict(metrics))
        return told

    def _count(self, experience: Experience) -> int:
        return self._exchange(experience.count)

    def _exchange(self, count: int) -> int:
        if not self._ranks.is_first:
            return self._ranks.exchange(count)
        signal, asked = self._interrupts.poll()
        periodic = self.periodic
        due = periodic.live_due if isinstance(periodic, FirstTasks) else 0
        return self._ranks.exchange(count, signal=signal, asked=asked, due=due)


class RankLimits(Limits):
    """Counts the episodes of all learners; the clock and the metrics are the first one's."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        super().__init__(config)
        self._ranks = ranks

    def reached(self, updates: int, seconds: float) -> str:
        """Why the run ends, or an empty string."""
        return self._decided(super().reached(updates, seconds))

    def reported(self, metrics: Mapping[str, float]) -> str:
        """The same after a report."""
        return self._decided(super().reported(metrics)) if self._condition is not None else ""

    def _decided(self, reason: str) -> str:
        told: str = self._ranks.tell(reason)
        return told

    def _count(self, experience: Experience) -> int:
        return int(self._ranks.sum([super()._count(experience)])[0])


class FirstTasks:
    """The first learner's evaluations and checkpoints, which all come to at the same step."""

    def __init__(self, tasks: PeriodicTasks, ranks: Ranks) -> None:
        self._tasks = tasks
        self._ranks = ranks

    @property
    def due(self) -> int:
        """The step from which on `reached` is called, as all have been told."""
        return self._ranks.due

    @due.setter
    def due(self, step: int) -> None:
        self._tasks.due = step

    @property
    def live_due(self) -> int:
        """The step that all will be told next."""
        return self._tasks.due

    @property
    def evaluate_seconds(self) -> float:
        """Seconds that evaluations and their videos took."""
        return self._tasks.evaluate_seconds

    def reached(self, step: int, metrics: MutableMapping[str, float]) -> str:
        """Do what is due while the others wait, and tell them what has come of it."""
        before = self._tasks.evaluation
        reason = self._tasks.reached(step, metrics)
        evaluation = self._tasks.evaluation
        new = evaluation if evaluation is not before else {}
        self._ranks.tell(("done", (reason, dict(new))))
        return reason

    def finish(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """Do what is due at the end of the run."""
        self._tasks.finish(step, metrics)
        self._ranks.tell(("done", ("", {})))

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile of evaluations."""
        self._tasks.record_phases(record)
