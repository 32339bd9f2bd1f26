"""The results of several seeds in Python, and the exceptions that bring them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rlplug.errors import RequestError, RunFailedError
from rlplug.review.comparison import Interval
from rlplug.runs.groups.group import Outcome
from rlplug.runs.groups.member import Member
from rlplug.runs.groups.seeds_summary import Measure, SeedsSummary
from rlplug.runs.recorded import RecordedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["GroupInterrupted", "RunResults", "SeedsFailedError", "refused", "results_of"]


class RunResults(Sequence[RecordedRun]):
    """The runs of several seeds, in the order in which the seeds were given.

    Modules stay in the processes that trained them: `results[0].load()` loads a policy.
    """

    def __init__(self, summary: SeedsSummary, folder: Path | None, run_id: str = "") -> None:
        self.group = summary.group
        """The same for runs that differ only in their seeds."""
        self.folder = folder
        """The folder with the files of the group; None if no seed came to have a run."""
        self.run_id = run_id
        """The summary run in MLflow; empty: there is none."""
        self._summary = summary
        self._runs = tuple(RecordedRun.of(run) for run in summary.runs)

    @overload
    def __getitem__(self, index: int) -> RecordedRun: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RecordedRun, ...]: ...
    def __getitem__(self, index: int | slice) -> RecordedRun | tuple[RecordedRun, ...]:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def measures(self) -> tuple[str, ...]:
        """What was measured of every finished seed: `best_return`, `final_return`, `reward`, …"""
        return tuple(measure.name for measure in self._summary.measures)

    def values(self, measure: str = "") -> tuple[float, ...]:
        """A number per finished seed; by default of the first measure."""
        return self._measure(measure).values

    def mean(self, measure: str = "") -> Interval:
        """The mean over the finished seeds, with its 95% bootstrap interval."""
        return self._measure(measure).mean

    def iqm(self, measure: str = "") -> Interval:
        """The interquartile mean over the finished seeds, with its 95% bootstrap interval."""
        return self._measure(measure).iqm

    def plot(self) -> Figure:
        """The mean learning curve of the finished seeds, with its 95% bootstrap interval."""
        self._measure("")
        return self._summary.figure()

    def _measure(self, name: str) -> Measure:
        known = {measure.name: measure for measure in self._summary.measures}
        if not known:
            raise RequestError("no seed has finished: there is nothing to sum up.", "see: .status")
        if name and name not in known:
            there = f"there are: {', '.join(known)}"
            raise RequestError(f"{name!r} was not measured of every seed.", there)
        return known[name or next(iter(known))]

    def _repr_markdown_(self) -> str:
        return self._summary.markdown()

    def __repr__(self) -> str:
        return "\n".join([f"RunResults of {self.group}:", *self._summary.lines(100)])


class SeedsFailedError(RunFailedError):
    """Some of several seeds failed; the others have gone on to their end."""

    def __init__(self, results: RunResults, errors: Sequence[str]) -> None:
        self.results = results
        """All seeds, those that failed among them."""
        super().__init__(f"{len(errors)} of {len(results)} seeds failed.", *errors)


class GroupInterrupted(KeyboardInterrupt):
    """Several seeds, or a study, were ended by a signal."""

    def __init__(self, results: Any, name: str, number: int) -> None:
        super().__init__(f"interrupted; to go on: rlplug resume {name}")
        self.results = results
        """`RunResults`, or a `StudyResult`."""
        self.number = number
        """The signal."""
        self.exit_code = 128 + number


def refused(members: Sequence[Member]) -> RequestError:
    """Why no run has begun."""
    first, *others = next(member.error for member in members if member.error)
    return RequestError(
        first,
        *(line.strip() for line in others),
        "runs in processes of their own know installed plugins and environments, not what this "
        "program registers itself",
    )


def results_of(outcome: Outcome[SeedsSummary]) -> RunResults:
    """The results, or the exception for seeds that have not finished."""
    if outcome.summary is None and not outcome.ended_by:
        raise refused(outcome.members)
    runs = tuple(member.record() for member in outcome.members)
    summary = outcome.summary or SeedsSummary(group="", runs=runs)
    folder = None if outcome.group is None else outcome.group.folder
    results = RunResults(summary, folder, outcome.run_id)
    if outcome.ended_by:
        raise GroupInterrupted(results, results.group, outcome.ended_by)
    if summary.errors:
        errors = [f"seed {seed}: {error}" for seed, error in summary.errors.items()]
        raise SeedsFailedError(results, errors)
    return results
