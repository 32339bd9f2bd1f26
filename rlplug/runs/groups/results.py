"""The results of several seeds in Python, and the exceptions that bring them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from rlplug.errors import RequestError, RunFailedError
from rlplug.review.comparison import Interval
from rlplug.runs.groups.seeds import SeedsOutcome
from rlplug.runs.groups.seeds_summary import Measure, SeedsSummary
from rlplug.runs.recorded import RecordedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RunResults", "SeedsFailedError", "SeedsInterrupted", "results_of"]


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
        self._refuse_unfinished()
        return self._summary.figure()

    def _measure(self, name: str) -> Measure:
        self._refuse_unfinished()
        known = {measure.name: measure for measure in self._summary.measures}
        if name and name not in known:
            raise RequestError(
                f"{name!r} was not measured of every seed.", f"there are: {', '.join(known)}"
            )
        return known[name] if name else next(iter(known.values()))

    def _refuse_unfinished(self) -> None:
        if not self._summary.measures:
            raise RequestError("no seed has finished: there is nothing to sum up.", "see: .status")

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


class SeedsInterrupted(KeyboardInterrupt):
    """Several seeds were ended by a signal."""

    def __init__(self, results: RunResults, number: int) -> None:
        super().__init__(f"interrupted; to go on: rlplug resume {results.group}")
        self.results = results
        self.number = number
        """The signal."""
        self.exit_code = 128 + number


def results_of(outcome: SeedsOutcome) -> RunResults:
    """The results, or the exception for seeds that have not finished."""
    if outcome.summary is None and not outcome.ended_by:
        failed = next(member for member in outcome.members if member.error)
        raise RequestError(
            failed.error[0],
            *(line.strip() for line in failed.error[1:]),
            "seeds run in processes of their own, which know installed plugins and environments, "
            "not what this program registers itself",
        )
    summary = outcome.summary or SeedsSummary(
        group="", runs=tuple(member.record() for member in outcome.members)
    )
    folder = None if outcome.group is None else outcome.group.folder
    results = RunResults(summary, folder, outcome.run_id)
    if outcome.ended_by:
        raise SeedsInterrupted(results, outcome.ended_by)
    if summary.errors:
        raise SeedsFailedError(
            results, [f"seed {seed}: {error}" for seed, error in summary.errors.items()]
        )
    return results
