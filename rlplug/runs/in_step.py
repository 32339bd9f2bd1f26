"""One of several learners of a run: its share, its training loop, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import attrs

from rlplug.config.sections import RunConfig
from rlplug.envs import Environments, EnvMaker
from rlplug.errors import RequestError, RlplugError
from rlplug.feeds import Experience
from rlplug.feeds.feed import share
from rlplug.runs.limits import Limits
from rlplug.runs.prepare import Prepared
from rlplug.runs.signals import Interrupted, Interrupts
from rlplug.scale.ranks import Ranks
from rlplug.trainer import Trainer

__all__ = ["FirstTasks", "join_ranks", "refuse_unfit", "shared"]

_COUNTS = ("num_envs", "num_workers", "num_epoch_samples", "min_batch_size", "max_batch_size")
"""Options of `[sampling]` that count for the whole run."""


def shared(prepared: Prepared, count: int, among: str = "learners") -> Prepared:
    """The run as one of its learners, or runners, carries it out: each has an equal share."""
    sampling, scale = prepared.config.sampling, prepared.config.scale
    own: dict[str, Any] = {}
    for name in _COUNTS:
        value, default = getattr(sampling, name), attrs.fields_dict(type(sampling))[name].default
        if name == "num_envs" or value != default:
            own[name] = share(value, count, f"sampling.{name}", among)
    if sampling.backend == "workers" and not sampling.num_workers and not sampling.envs_per_worker:
        own["num_workers"] = max(min(sampling.workers // count, own["num_envs"]), 1)
    changed: dict[str, Any] = {"sampling": own}
    if among == "learners" and scale.engine == "ray":
        changed["scale"] = {"runners": share(scale.runners, count, "scale.runners", among)}
        if not scale.learner_gpus and prepared.config.compute.device == "auto":
            # Other learners see no GPU: the one with this process's does what they do.
            changed["compute"] = {"device": "cpu"}
    return prepared.with_options(**changed)


def refuse_unfit(prepared: Prepared, maker: EnvMaker, *, rerunnable: bool) -> None:
    """Refuse what several learners, or runners, cannot share."""
    config, scale = prepared.config, prepared.config.scale
    among = "runners" if scale.engine == "ray" else "learners"
    count: int = getattr(scale, among)
    envs, device = scale.envs_per_runner * count, config.compute.device
    is_nested = among == "runners" and scale.learners > 1
    unfit = {
        "other processes cannot make what was given as an object of this process": not rerunnable
        or not isinstance(maker, str),
        "a log is read by one process alone": config.data.is_used,
        f"experience of {among} cannot be recorded": config.sampling.record,
        f"sampling.min_trajectory_length would leave {among} without rows": (
            config.sampling.min_trajectory_length > 1
        ),
        f"compute.device = {device!r}, but scale.learner_gpus = 0": is_nested
        and not scale.learner_gpus
        and device.startswith("cuda"),
        f"scale.runners × envs_per_runner = {envs} is not sampling.num_envs = "
        f"{config.sampling.num_envs}": envs and envs != config.sampling.num_envs,
    }
    hints: list[str] = []
    problems = [problem for problem, applies in unfit.items() if applies]
    try:
        shared(prepared, count, among)
        if is_nested:
            share(count, scale.learners, "scale.runners")
    except RlplugError as error:
        problems.append(error.message.rstrip("."))
        hints += error.hints
    if problems:
        said = f"a run with {count} {among}: {'; '.join(problems)}."
        raise RequestError(said, *(hints or ["see: rlplug options scale"]))


def join_ranks(
    ranks: Ranks,
    interrupts: Interrupts,
    environments: Environments,
    made: tuple[Any, Any, Any, Any],
    config: RunConfig,
    judge: Callable[[Mapping[str, float]], str],
) -> tuple[Limits, Trainer]:
    """The limits and the training loop of one of several learners.

    Environments whose share depends on what happens in them are refused.
    """
    _, learner, sampler, feed = made
    why = hint = ""
    if environments.device is not None:
        why, hint = "gives tensors, whose statistics are of one process", "scale.learners=1"
    elif environments.autoreset.value == "NextStep" and feed.steps_per_collect == 1:
        why = "resets in steps of their own, in which a learner has nothing to learn from"
        hint = "sampling.vectorization=sync"
    if why:
        raise RequestError(
            f"a run with {ranks.size} learners: environment {environments.name!r} {why}.",
            f"try: --set {hint}",
        )
    learner.process_group.check = ranks.refuse_lost
    for stats in sampler.stats_by_module.values():
        stats.sum = ranks.sum
    if sampler.roster is not None:
        sampler.roster.gather = ranks.gather_in_step
    limits = RankLimits(ranks, config, judge)
    return limits, RankTrainer(ranks, interrupts, *made, steps=config.run.steps, limits=limits)


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
        tasks: Any = self.periodic
        return self._ranks.exchange(count, signal=signal, asked=asked, due=tasks.tasks.due)


class RankLimits(Limits):
    """Counts the episodes of all learners; the clock and the metrics are the first one's."""

    def __init__(self, ranks: Ranks, *given: Any) -> None:
        super().__init__(*given)
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
