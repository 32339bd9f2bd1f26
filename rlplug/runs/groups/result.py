"""What a group comes to: a table, means and IQMs with intervals, the best of it, a band."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import attrs

from rlplug.config.toml import toml_value
from rlplug.errors import RequestError, RunFailedError
from rlplug.quantities import format_number
from rlplug.review.comparison import Interval, bootstrap, mean_interval
from rlplug.review.history import curve_metric, fitting, markdown_row
from rlplug.review.plots import band_panel, draw
from rlplug.review.record import REGRET, REWARD, RunRecord, ranking
from rlplug.runs.groups.seeds import seeds_text
from rlplug.runs.recorded import RecordedRun
from rlplug.tracking.details import read_history

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rlplug.serving import Policy

__all__ = ["GroupFailedError", "GroupInterrupted", "GroupResult", "Row"]

_STATUSES = ("FINISHED", "PRUNED", "FAILED", "KILLED")
_SHOWN = 15
"""Trials in the terminal, the best first; the others are in the files."""
_SPARE = ("steps", "run", "status", "IQM [95%]")
"""Columns that are left out where the terminal is too narrow."""

Table = list[list[str]]


@attrs.frozen(kw_only=True)
class Row:
    """A seed, or a trial with a run for each of its seeds."""

    number: int
    status: str
    runs: tuple[RecordedRun, ...]
    """Of a seed without a run, a record without an id."""
    score: float | None = None
    """What the rows are ranked by."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Those that were searched."""
    error: str = ""
    """Why it failed."""

    @classmethod
    def of_seed(cls, run: RunRecord, error: str = "") -> Row:
        runs, seed = (RecordedRun.of(run),), run.about.seed
        return cls(number=seed, status=run.status, runs=runs, score=run.score, error=error)

    @property
    def run(self) -> RecordedRun | None:
        """Its best run; None if it has none."""
        return max((run for run in self.runs if run.run_id), key=ranking, default=None)

    @property
    def step(self) -> int:
        return max((run.step for run in self.runs), default=0)

    def load(self, **options: Any) -> Policy:
        """The policy of its best run; `rlplug.load` has the options."""
        if self.run is None:
            raise RequestError("it has no run: there is nothing to load.", f"why: {self.error}")
        return self.run.load(**options)


@attrs.frozen(kw_only=True, repr=False)
class GroupResult(Sequence[RecordedRun]):
    """The runs of several seeds, in the order of the seeds, or of the trials of a study.

    Modules stay in the processes that trained them: `result[0].load()` loads a policy.
    """

    group: str
    """Its name."""
    kind: Literal["seed", "trial"]
    rows: tuple[Row, ...]
    """One for each seed or trial, by number."""
    metric: str = ""
    """The metric that a study optimizes; empty: what ranks the runs."""
    maximizes: bool = True
    importances: Mapping[str, float] = attrs.field(factory=dict)
    """Of a study: option → its share of what makes trials good."""
    played: Mapping[str, float] = attrs.field(factory=dict)
    """What the best run did in more episodes, which did not choose it; empty: not asked."""
    folder: Path | None = None
    """The folder with its files; None if no run has begun."""
    run_id: str = ""
    """The parent run in MLflow; empty: there is none."""

    @property
    def runs(self) -> tuple[RecordedRun, ...]:
        """All runs."""
        return tuple(run for row in self.rows for run in row.runs)

    @overload
    def __getitem__(self, index: int) -> RecordedRun: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RecordedRun, ...]: ...
    def __getitem__(self, index: int | slice) -> RecordedRun | tuple[RecordedRun, ...]:
        return self.runs[index]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def ranked(self) -> list[Row]:
        """The best first; then those that were pruned, and those without a result."""

        def rank(row: Row) -> tuple[int, float, float, int]:
            score = -math.inf if row.score is None or math.isnan(row.score) else row.score
            last = 0.0 if row.run is None else ranking(row.run)[1]
            place = _STATUSES.index(row.status) if row.status in _STATUSES else len(_STATUSES)
            return place, -score if self.maximizes else score, -last, row.number

        return sorted(self.rows, key=rank)

    @property
    def best(self) -> Row | None:
        """The best of the rows that have finished; None without one."""
        finished = [row for row in self.ranked if row.status == "FINISHED"]
        return next((row for row in finished if row.score is not None), None)

    # -- measures ----------------------------------------------------------------------------------

    @property
    def counted(self) -> tuple[RecordedRun, ...]:
        """The runs that are measured: seeds that have finished, or those of the best trial."""
        if self.kind == "trial":
            return () if self.best is None else self.best.runs
        return tuple(run for run in self.runs if run.status == "FINISHED")

    @property
    def measures(self) -> tuple[str, ...]:
        """What was measured of each: `best_return`, `final_return`, `reward`, …"""
        measured = [_measured(run) for run in self.counted]
        names = next(iter(measured), {})
        return tuple(name for name in names if all(name in values for values in measured))

    def values(self, measure: str = "") -> tuple[float, ...]:
        """A number per finished seed, of a study those of the best trial; the first measure."""
        names = self.measures
        if not names:
            raise RequestError("no run has finished: there is nothing to sum up.", "see: .rows")
        if measure and measure not in names:
            there = f"there are: {', '.join(names)}"
            raise RequestError(f"{measure!r} was not measured of every seed.", there)
        return tuple(_measured(run)[measure or names[0]] for run in self.counted)

    def mean(self, measure: str = "") -> Interval:
        """The mean of `values`, with its 95% bootstrap interval."""
        return mean_interval(self.values(measure))

    def iqm(self, measure: str = "") -> Interval:
        """The interquartile mean of `values`, with its 95% bootstrap interval."""
        return bootstrap(self.values(measure))

    def plot(self) -> Figure:
        """The mean learning curve of the same runs, with its 95% bootstrap interval."""
        self.values()
        about = self.counted[0].about
        histories = [read_history(run) for run in self.counted]
        has_regret = any(REGRET in history for history in histories)
        name = REGRET if has_regret else curve_metric(histories[0])
        curves = [history[name] for history in histories if name in history]
        seeds = seeds_text(run.about.seed for run in self.counted)
        steps = f"{about.steps:,} environment steps"
        what = f"{about.algorithm} on {about.env}, {steps}, seeds {seeds}, 95% intervals"
        return draw([band_panel({about.algorithm: curves}, name)], self.group, what)

    # -- what is shown and recorded ----------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        measures = {}
        for name in self.measures:
            intervals = {"mean": attrs.asdict(self.mean(name)), "iqm": attrs.asdict(self.iqm(name))}
            measures[name] = {"values": self.values(name), **intervals}
        return {
            "group": self.group,
            "rows": [self._facts(row) for row in self.rows],
            "finished": sum(row.status == "FINISHED" for row in self.rows),
            "measures": measures,
            "metric": self.label,
            "best": None if self.best is None else self._facts(self.best),
            "played": dict(self.played),
            "importances": dict(self.importances),
            "summary_run_id": self.run_id,
            "folder": str(self.folder),
        }

    def _facts(self, row: Row) -> dict[str, Any]:
        runs = [
            {
                **{name: getattr(run, name) for name in ("run_id", "status", "step")},
                "seed": run.about.seed,
                **_measured(run),
                "best": run.best and {"step": run.best[0], "return_mean": run.best[1]},
                "folder": str(run.folder or ""),
            }
            for run in row.runs
        ]
        if self.kind == "seed":
            return {**runs[0], "error": row.error}
        facts = {"trial": row.number, "status": row.status, "score": row.score, "error": row.error}
        return {**facts, "options": dict(row.options), "runs": runs}

    def lines(self, width: int) -> Iterator[str]:
        """For the terminal: the table, why runs failed, and what all come to."""
        rows = self._ordered
        shown = rows[:_SHOWN] if self.kind == "trial" else rows
        yield from fitting(self._table(shown), width, _SPARE)
        if len(shown) < len(rows):
            yield f"… {len(rows) - len(shown)} more in summary.md"
        yield from self._errors
        if self.kind == "trial":
            yield from ("", self.counts)
        for table in self._sums:
            yield from ("", *fitting(table, width, _SPARE))
        if self._about_best:
            yield from ("", *self._about_best)

    def markdown(self) -> str:
        """The same for MLflow, notebooks and `summary.md`."""
        lines = [f"    {line}" for line in self._about_best]
        lines += ["", f"{self.counts}."] if self.kind == "trial" else []
        for headings, *rows in (*self._sums, self._table(self._ordered)):
            lines += ["", *map(markdown_row, [headings, ["---:"] * len(headings), *rows])]
        lines += ["", *(f"- {error}" for error in self._errors)]
        return "\n".join(lines).strip("\n") + "\n"

    def metrics(self) -> dict[str, float]:
        """What MLflow has of it."""
        counts = Counter(row.status for row in self.rows)
        metrics = {f"summary/{self.kind}s": float(len(self.rows))}
        metrics |= {f"summary/{status.lower()}": float(counts[status]) for status in _STATUSES}
        metrics |= {f"summary/played_{name}": value for name, value in self.played.items()}
        metrics |= {f"importance/{name}": share for name, share in self.importances.items()}
        if self.best is not None and self.best.score is not None:
            metrics["summary/best"] = self.best.score
            metrics[f"summary/best_{self.kind}"] = float(self.best.number)
        intervals = {"iqm": self.iqm()} if self.measures else {}
        for name in self.measures:
            intervals |= {f"{name}_mean": self.mean(name), f"{name}_iqm": self.iqm(name)}
        for name, interval in intervals.items():
            metrics[f"summary/{name}"] = interval.estimate
            metrics[f"summary/{name}_low"] = interval.low
            metrics[f"summary/{name}_high"] = interval.high
        return metrics

    def series(self) -> dict[str, dict[int, float]]:
        """The scores of trials by their numbers, and the best so far."""
        finished = [row for row in self.rows if row.status == "FINISHED" and row.options]
        scores = {row.number: row.score for row in finished if row.score is not None}
        best = accumulate(scores.values(), max if self.maximizes else min)
        return {"trials/score": scores, "trials/best_so_far": dict(zip(scores, best, strict=True))}

    @property
    def label(self) -> str:
        """What scores are called."""
        names = [run.headline[0] for run in self.runs if run.headline is not None]
        if self.metric or not names:
            return self.metric or "score"
        if any(run.best is not None for run in self.runs):
            return "best return"
        return "mean reward" if names[0] == REWARD else names[0]

    @property
    def counts(self) -> str:
        """`20 trials: 12 finished, 8 pruned`."""
        counts = Counter(row.status for row in self.rows)
        parts = [f"{counts[status]} {status.lower()}" for status in _STATUSES if counts[status]]
        return f"{len(self.rows)} {self.kind}{'s' if self.rows[1:] else ''}: {', '.join(parts)}"

    @property
    def _ordered(self) -> Sequence[Row]:
        """As in tables: the best trial first, or the seeds in their order."""
        return self.ranked if self.kind == "trial" else self.rows

    @property
    def _errors(self) -> list[str]:
        return [f"{self.kind} {row.number}: {row.error}" for row in self.rows if row.error]

    @property
    def _about_best(self) -> list[str]:
        best = self.best
        if best is None or not (best.options or self.played):
            return []
        line = f"best: {self.kind} {best.number}, {self.label} {format_number(best.score)}"
        if self.played:
            mean, episodes = self.played["return_mean"], self.played["episodes"]
            line += f"; {format_number(mean)} in {episodes:,.0f} more episodes"
        return [line, *(f"  {name} = {toml_value(x)}" for name, x in best.options.items())]

    @property
    def _sums(self) -> Iterator[Table]:
        """What was measured, and the importance of options."""
        means = [[name, str(self.mean(name)), str(self.iqm(name))] for name in self.measures]
        means = [[name.replace("_", " "), *intervals] for name, *intervals in means]
        counted, total = len(self.counted), len(self.rows if self.kind == "seed" else self.counted)
        count = f"{counted} seeds" if counted == total else f"{counted} of {total} seeds"
        if counted:
            yield [[count, "mean [95%]", "IQM [95%]"], *means]
        if self.importances:
            shares = [[name, f"{share:.0%}"] for name, share in self.importances.items()]
            yield [["option", "importance"], *shares]

    def _table(self, shown: Sequence[Row]) -> Table:
        """Headings, and a line per row; only columns that some row has something in."""
        rows = [self._cells(row) for row in shown]
        names = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
        return [[*names], *([row.get(name, "") for name in names] for row in rows)]

    def _cells(self, row: Row) -> dict[str, str]:
        cells = {self.kind: str(row.number), "status": row.status, "steps": f"{row.step:,}"}
        if self.kind == "trial":
            cells[self.label] = format_number(row.score)
        else:
            measured = _measured(row.runs[0])
            cells |= {name.replace("_", " "): format_number(x) for name, x in measured.items()}
            if row.runs[0].best is not None:
                cells["best return"] += f" @ {row.runs[0].best[0]:,}"
        every = dict.fromkeys(name for other in self.rows for name in other.options)
        ends = Counter(name.rpartition(".")[2] for name in every)
        for name in every:
            value, end = row.options.get(name, ""), name.rpartition(".")[2]
            text = format_number(value) if isinstance(value, float) else toml_value(value)
            cells[end if ends[end] == 1 else name] = value if isinstance(value, str) else text
        return {**cells, "run": "" if row.run is None else row.run.short}

    def _repr_markdown_(self) -> str:
        return self.markdown()

    def __repr__(self) -> str:
        return "\n".join([f"GroupResult of {self.group}:", *self.lines(100)])


class GroupFailedError(RunFailedError):
    """Some of several seeds failed; the others have gone on to their end."""

    def __init__(self, result: GroupResult, errors: Sequence[str]) -> None:
        self.result = result
        """All seeds, those that failed among them."""
        super().__init__(f"{len(errors)} of {len(result)} seeds failed.", *errors)


class GroupInterrupted(KeyboardInterrupt):
    """The runs of a group were ended by a signal."""

    def __init__(self, result: GroupResult, number: int) -> None:
        super().__init__(f"interrupted; to go on: rlplug resume {result.group}")
        self.result = result
        self.number = number
        """The signal."""
        self.exit_code = 128 + number


def _measured(run: RunRecord) -> dict[str, float]:
    """What one run is measured by: its evaluations, or else what it got while it trained."""
    latest = run.latest
    names = {"reward": "rollout/reward_mean", "regret": "rollout/regret_total"}
    if run.best is not None:
        names = {"final_return": "eval/return_mean"}
    elif "rollout/return_mean" in latest:
        names = {"train_return": "rollout/return_mean"}
    best = {} if run.best is None else {"best_return": run.best[1]}
    found = best | {name: latest.get(metric, math.nan) for name, metric in names.items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}
