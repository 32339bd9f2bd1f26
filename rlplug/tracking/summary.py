"""The description on a run's page in MLflow: headline metrics, and how to run it again."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from rlplug.hooks.events import RunInfo
from rlplug.quantities import format_duration, format_number
from rlplug.review.record import REGRET, RETURN, REWARD, RunAbout, best_evaluation
from rlplug.tracking.record import command_line

_ENDINGS = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "was interrupted",
    "RUNNING": "is running",
}
_LABELS = {
    "eval/return_mean": "last evaluation",
    RETURN: "training return",
    REWARD: "reward",
    "rollout/regret_mean": "regret per step",
    REGRET: "total regret",
}


def summary(
    run: RunInfo,
    about: RunAbout,
    status: str,
    step: int,
    metrics: Mapping[str, float],
    error: str = "",
) -> str:
    """The summary as Markdown."""
    # MLflow shows a few lines until more are asked for: options and the best come first.
    options = f"`{about.shown_options}`" if about.options else "default options"
    plugins = ", ".join(
        f"{one.name} {one.found.version} ({one.found.distribution})" for one in run.participants
    )
    short, more = run.run_id[:8], f" --steps {2 * step}" if status == "FINISHED" else ""
    # One list: a blank line between two would spread both over more lines than are shown.
    lines = [
        f"**{about.algorithm}** on **{about.env}**, seed {about.seed}, {options}: "
        f"{_ENDINGS[status]} after {step:,} of {run.steps:,} environment steps.",
        "",
        *(["```text", error.strip(), "```", ""] if error else []),
        *(f"- {name}: {value}" for name, value in _rows(metrics, step)),
        f"- plugins: {plugins}",
        "- curves, checkpoints and the video: `report.html` among the artifacts",
        "",
        "```bash",
        f"{command_line()}    # started it",
        *([f"rlplug run --like {short}"] if run.rerunnable else []),
        f"rlplug resume {short}{more}",
        f"rlplug eval {short} --episodes 100",
        "```",
    ]
    if not run.rerunnable:
        lines += ["", "It was started from Python with its own classes: run that program again."]
    return "\n".join(lines)


def _rows(metrics: Mapping[str, float], step: int) -> Iterator[tuple[str, str]]:
    """The best evaluation, then the headline metrics."""
    best = best_evaluation(metrics)
    if best is not None:
        yield "best evaluation", f"**{format_number(best[1])}** at step {best[0]:,}"
    regrets = sorted(name for name in metrics if "regret" in name)
    for name in ("eval/return_mean", headline_metric(metrics), *regrets):
        if math.isfinite(metrics.get(name, math.nan)):
            yield _LABELS.get(name, name), format_number(metrics[name])
    seconds = metrics.get("time/seconds", 0.0)
    if seconds:
        speed = f"{step / seconds:,.0f} steps per second"
        yield "training took", f"{format_duration(seconds)}, {speed}"


def headline_metric(names: Collection[str]) -> str:
    """The return if it is there, else the reward."""
    return RETURN if RETURN in names else REWARD


def labeled(metrics: Mapping[str, float], labels: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Labels and values of the metrics that have a label, in the order of the labels."""
    for name, label in labels.items():
        if name in metrics and (name != REWARD or headline_metric(metrics) == REWARD):
            yield label, metrics[name]
