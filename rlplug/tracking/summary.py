"""The description on a run's page in MLflow: headline metrics, and how to run it again."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from rlplug.hooks.events import RunInfo
from rlplug.tracking.record import command_line

__all__ = ["RETURN", "REWARD", "headline_metric", "labeled", "summary"]

REWARD = "rollout/reward_mean"
"""Mean reward per step, the headline metric of bandits."""
RETURN = "rollout/return_mean"
"""Mean return per episode, the headline metric where episodes have several steps."""

_ENDINGS = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "was interrupted",
    "RUNNING": "is running",
}
_HEADLINES = ("eval/return_mean", "time/steps_per_second", "time/seconds")


def summary(
    run: RunInfo, status: str, step: int, metrics: Mapping[str, float], error: str = ""
) -> str:
    """The summary as Markdown."""
    packages = ", ".join(one.found.package for one in run.participants)
    lines = [
        f"**{run.config.run.algorithm}** on **{run.environment}**, seed {run.config.run.seed}: "
        f"{_ENDINGS[status]} after {step:,} of {run.steps:,} environment steps.",
        "",
    ]
    if error:
        lines += ["```text", error.strip(), "```", ""]
    shown = [name for name in _headlines(metrics) if math.isfinite(metrics[name])]
    if shown:
        lines += ["| metric | last value |", "|---|---:|"]
        lines += [f"| {name} | {metrics[name]:,.5g} |" for name in shown]
        lines.append("")
    lines += ["Command:", "", "```bash", command_line(), "```", ""]
    if run.rerunnable:
        lines += [
            "To run it again, with `config/resolved.toml` from the artifacts:",
            "",
            "```bash",
            "rlplug run --config resolved.toml",
            "```",
            "",
        ]
    else:
        lines += [
            "It was started from Python with its own classes: run that program again.",
            "",
        ]
    lines.append(f"Plugins: {packages}. Curve: `plots/learning_curve.png`.")
    return "\n".join(lines)


def headline_metric(names: Collection[str]) -> str:
    """The return if it is there, else the reward."""
    return RETURN if RETURN in names else REWARD


def labeled(metrics: Mapping[str, float], labels: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Labels and values of the metrics that have a label, in the order of the labels."""
    for name, label in labels.items():
        if name in metrics and (name != REWARD or headline_metric(metrics) == REWARD):
            yield label, metrics[name]


def _headlines(metrics: Mapping[str, float]) -> list[str]:
    regrets = sorted(name for name in metrics if "regret" in name)
    return [name for name in (headline_metric(metrics), *regrets, *_HEADLINES) if name in metrics]
