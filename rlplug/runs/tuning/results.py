"""A study in Python: `rlplug.tune(...)`, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.config.sources import settings_of
from rlplug.errors import RequestError
from rlplug.registry import Registry
from rlplug.runs.recorded import RecordedRun
from rlplug.runs.request import Request
from rlplug.runs.seeds.asked import check_seeds
from rlplug.runs.seeds.display import SilentSeeds, display_for
from rlplug.runs.tuning.asked import TuneRequest
from rlplug.runs.tuning.figures import importance_figure
from rlplug.runs.tuning.summary import StudySummary, TrialRow
from rlplug.runs.tuning.tune import TuneOutcome
from rlplug.runs.tuning.tune import tune as carry_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["StudyInterrupted", "StudyResult", "TrialResult", "tune"]


@attrs.frozen(kw_only=True)
class TrialResult:
    """One trial: the options that it was run with, and its score."""

    number: int
    status: str
    """`finished`, `pruned` or `failed`."""
    score: float | None
    options: Mapping[str, Any]
    runs: tuple[RecordedRun, ...]
    """The run of each seed."""

    @classmethod
    def of(cls, row: TrialRow) -> TrialResult:
        """Of a row of the summary."""
        return cls(
            number=row.proposal.number,
            status=row.status,
            score=row.proposal.score,
            options=dict(row.proposal.values),
            runs=tuple(RecordedRun.of(run) for run in row.runs),
        )


class StudyResult:
    """What a study came to: `best.options`, `trials`, `importances`."""

    def __init__(self, summary: StudySummary, folder: Path, run_id: str) -> None:
        self.study = summary.study
        """Its name."""
        self.folder = folder
        """The folder with its files."""
        self.run_id = run_id
        """The summary run in MLflow; empty: there is none."""
        self.trials = tuple(map(TrialResult.of, summary.trials))
        """All trials, by number."""
        self.best = None if summary.best is None else TrialResult.of(summary.best)
        """The best of those that have finished; None without one."""
        self.importances = dict(summary.importances)
        """Option → its share of what makes trials good."""
        self._summary = summary

    def plot(self) -> Figure:
        """The importance of each option."""
        if not self.importances:
            raise RequestError("too few trials differ to tell importances.", "see: .trials")
        return importance_figure(self._summary)

    def __repr__(self) -> str:
        return f"StudyResult of {self.study}:\n" + "\n".join(self._summary.lines(100))


class StudyInterrupted(KeyboardInterrupt):
    """A study was ended by a signal; the same call goes on with it."""

    def __init__(self, result: StudyResult, number: int) -> None:
        super().__init__(f"interrupted; to go on: rlplug resume {result.study}")
        self.result = result
        self.exit_code = 128 + number


def tune(
    algorithm: str = "",
    env: str = "",
    *,
    space: Mapping[str, Any] | None = None,
    trials: int = 0,
    steps: int = 0,
    seeds: Iterable[int] | int | None = None,
    jobs: int = 0,
    study: str = "",
    config: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    show: bool = False,
) -> StudyResult:
    """Search for options: `tune("ppo", space={"learning_rate": {"low": 1e-5, "high": 1e-2}})`.

    `options` have the keys of `--set`, those of the study among them: `tune.pruner`. Trials have
    processes of their own, which know installed plugins and environments. The same call goes on
    with the study; `show=True` prints progress.
    """
    run = {"algorithm": algorithm, "env": env, "steps": steps}
    flags: dict[str, Any] = {"run": {name: value for name, value in run.items() if value}}
    request = Request(
        config=None if config is None else Path(config),
        flags=flags,
        settings=settings_of(options),
        flags_origin="arguments of tune",
    )
    section: dict[str, Any] = {"space": dict(space or {})}
    section |= {"trials": trials} if trials else {}
    if seeds is not None:
        chosen = check_seeds(range(seeds) if isinstance(seeds, int) else seeds)
        section["seeds"] = ",".join(map(str, chosen)) if chosen[1:] else f"{chosen[0]}-{chosen[0]}"
    asked = TuneRequest.of(request, section, Registry.installed())
    return _result(carry_out(asked, jobs, display_for if show else SilentSeeds, study))


def _result(outcome: TuneOutcome) -> StudyResult:
    if outcome.summary is None:
        failed = next(one for one in outcome.states if one.error)
        raise RequestError(failed.error[0], *(line.strip() for line in failed.error[1:]))
    result = StudyResult(outcome.summary, outcome.group.folder, outcome.run_id)
    if outcome.ended_by:
        raise StudyInterrupted(result, outcome.ended_by)
    return result
