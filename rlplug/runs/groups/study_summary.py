"""What a study comes to: its trials, the best of them, and which options mattered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.toml import toml_value
from rlplug.durable import write_durably
from rlplug.quantities import format_number
from rlplug.review.history import aligned, fitting, markdown_row
from rlplug.review.record import REWARD, RunRecord
from rlplug.runs.groups.group import CONFIG
from rlplug.runs.groups.study import Proposal
from rlplug.runs.groups.summary_run import SummaryRecord

__all__ = ["StudySummary", "TrialRow"]

_WORDS = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "interrupted"}

_SHOWN = 15
"""Trials in the terminal, the best first; the others are in the files."""


@attrs.frozen(kw_only=True)
class TrialRow:
    """One trial, with the runs of its seeds."""

    proposal: Proposal
    runs: tuple[RunRecord, ...]
    error: str = ""
    """Why it failed."""

    @property
    def status(self) -> str:
        """For people."""
        return _WORDS.get(self.proposal.status, self.proposal.status)

    @property
    def is_finished(self) -> bool:
        return self.proposal.status == "COMPLETE" and self.proposal.score is not None

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "trial": self.proposal.number,
            "status": self.status,
            "score": self.proposal.score,
            "options": dict(self.proposal.values),
            "runs": {str(run.about.seed): run.run_id for run in self.runs},
            "step": max((run.step for run in self.runs), default=0),
            "error": self.error,
        }


@attrs.frozen(kw_only=True)
class StudySummary:
    """A study so far."""

    study: str
    metric: str
    """The metric that is optimized; empty: what ranks the runs."""
    maximizes: bool
    trials: tuple[TrialRow, ...]
    """By number."""
    importances: Mapping[str, float]
    options: Mapping[str, str] = attrs.field(factory=dict)
    """All that its results depend on."""

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The runs of all trials."""
        return tuple(run for one in self.trials for run in one.runs)

    @property
    def ranked(self) -> list[TrialRow]:
        """The best first; then those that were pruned, and those without a result."""
        sign = -1.0 if self.maximizes else 1.0

        def rank(one: TrialRow) -> tuple[int, float, int]:
            score = one.proposal.score
            group = 0 if one.is_finished else 1 if one.status == "pruned" else 2
            value = math.inf if score is None else sign * score
            return group, value, one.proposal.number

        return sorted(self.trials, key=rank)

    @property
    def best(self) -> TrialRow | None:
        """The best of those that have finished; None without one."""
        first = next(iter(self.ranked), None)
        return first if first is not None and first.is_finished else None

    @property
    def best_run(self) -> RunRecord | None:
        """A run of the best trial."""
        return None if self.best is None else next(iter(self.best.runs), None)

    @property
    def label(self) -> str:
        """What scores are called."""
        if self.metric:
            return self.metric
        if any(run.best is not None for run in self.runs):
            return "best return"
        name = next((run.headline[0] for run in self.runs if run.headline is not None), "score")
        return "mean reward" if name == REWARD else name

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the summary run in MLflow."""
        found = {"summary/trials": float(len(self.trials))}
        for word in ("finished", "pruned", "failed"):
            found[f"summary/{word}"] = float(self._count(word))
        if self.best is not None and self.best.proposal.score is not None:
            found["summary/best"] = self.best.proposal.score
            found["summary/best_trial"] = float(self.best.proposal.number)
        return found | {f"importance/{name}": one for name, one in self.importances.items()}

    @property
    def scores(self) -> dict[int, float]:
        """Number → score of the trials that have finished."""
        return {
            one.proposal.number: one.proposal.score
            for one in self.trials
            if one.is_finished and one.proposal.score is not None
        }

    @property
    def best_so_far(self) -> dict[int, float]:
        """Number → the best score of the trials up to it."""
        found: dict[int, float] = {}
        for number, score in self.scores.items():
            before = next(reversed(found.values()), score)
            found[number] = max(before, score) if self.maximizes else min(before, score)
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "study": self.study,
            "metric": self.label,
            "direction": "maximize" if self.maximizes else "minimize",
            "best": None if self.best is None else self.best.as_json(),
            "importances": dict(self.importances),
            "trials": [one.as_json() for one in self.trials],
        }

    def lines(self, width: int) -> Iterator[str]:
        """For the terminal: the best trials, and which options mattered."""
        ranked = self.ranked
        headings, rows = self._table(ranked[:_SHOWN])
        yield from fitting([headings, *rows], width, ("steps", "run", "status"))
        if ranked[_SHOWN:]:
            yield f"… {len(ranked) - _SHOWN} more in summary.md"
        for one in self.trials:
            if one.error:
                yield f"trial {one.proposal.number}: {one.error}"
        yield ""
        yield self.counts
        if self.importances:
            yield ""
            yield from aligned([("option", "importance"), *self._importance_cells()])

    @property
    def counts(self) -> str:
        """`20 trials: 12 finished, 8 pruned`."""
        words = [one for one in _WORDS.values() if self._count(one)]
        counts = ", ".join(f"{self._count(word)} {word}" for word in words)
        return f"{len(self.trials)} trial{'s' if self.trials[1:] else ''}: {counts}"

    def markdown(self) -> str:
        """The same for MLflow and `summary.md`."""
        lines = []
        if self.best is not None:
            score = format_number(self.best.proposal.score)
            lines += [f"Best: trial {self.best.proposal.number}, {self.label} {score}", ""]
            lines += ["```toml"]
            lines += [f"{name} = {toml_value(x)}" for name, x in self.best.proposal.values.items()]
            lines += ["```", ""]
        lines += [f"{self.counts}.", ""]
        if self.importances:
            lines += [markdown_row(("option", "importance")), markdown_row(("---", "---:"))]
            lines += [*map(markdown_row, self._importance_cells()), ""]
        headings, rows = self._table(self.ranked)
        lines += [markdown_row(headings), markdown_row(["---:"] * len(headings))]
        lines += map(markdown_row, rows)
        errors = [one for one in self.trials if one.error]
        lines += ["", *(f"- trial {one.proposal.number}: {one.error}" for one in errors)]
        return "\n".join(lines).rstrip() + "\n"

    def record(self) -> SummaryRecord:
        """What is kept of it, in files and in MLflow."""
        best = {} if self.best is None else self.best.proposal.values
        tuned = {name: one for name, one in self.options.items() if name.startswith("tune.")}
        return SummaryRecord(
            runs=self.runs,
            as_json=self.as_json(),
            markdown=self.markdown(),
            metrics=self.metrics,
            params=tuned,
            tags={
                "rlplug.options": " ".join(f"{name}={value}" for name, value in best.items()),
                "rlplug.trials": str(len(self.trials)),
            },
            series={"trials/score": self.scores, "trials/best_so_far": self.best_so_far},
            files={"best.toml": self._write_best},
        )

    def _write_best(self, file: Path) -> None:
        run = self.best_run
        if run is not None and run.folder is not None:
            write_durably(file, (run.folder / CONFIG).read_bytes())

    def _count(self, word: str) -> int:
        return sum(one.status == word for one in self.trials)

    def _importance_cells(self) -> Iterator[tuple[str, str]]:
        for name, one in self.importances.items():
            yield name, f"{one:.0%}"

    def _table(self, trials: list[TrialRow]) -> tuple[list[str], list[list[str]]]:
        names = dict.fromkeys(name for one in self.trials for name in one.proposal.values)
        short = [name.rpartition(".")[2] for name in names]
        options = [
            end if short.count(end) == 1 else name for name, end in zip(names, short, strict=True)
        ]
        headings = ["trial", "status", self.label, "steps", *options, "run"]
        rows = []
        for one in trials:
            values = one.proposal.values
            rows.append(
                [
                    str(one.proposal.number),
                    one.status,
                    format_number(one.proposal.score),
                    f"{max((run.step for run in one.runs), default=0):,}",
                    *(_option_cell(values[name]) if name in values else "" for name in names),
                    next((run.short for run in one.runs), ""),
                ]
            )
        return headings, rows


def _option_cell(value: Any) -> str:
    if isinstance(value, float):
        return format_number(value)
    return value if isinstance(value, str) else toml_value(value)
