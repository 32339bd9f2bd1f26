"""`rlplug eval`: evaluate a tracked run on fresh episodes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import (
    checkpoint_option,
    debug_option,
    seed_option,
    trust_option,
)
from rlplug.cli.process import starting
from rlplug.cli.terminal import in_columns
from rlplug.errors import RequestError
from rlplug.quantities import format_number, format_path
from rlplug.review.record import OF_AGENT

if TYPE_CHECKING:
    from rlplug.runs.evaluate import Evaluated

__all__ = ["evaluate"]


@click.command("eval", cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="RUN")
@click.option(
    "--episodes",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Number of episodes.",
)
@click.option("--env", metavar="ID", default="", help="Environment; default: that of the run.")
@seed_option("Random seed; the same seed gives the same episodes for every policy.")
@checkpoint_option
@click.option("--video", is_flag=True, help="Record a video of one episode (needs rlplug[video]).")
@trust_option
@click.option(
    "--no-record",
    is_flag=True,
    help="Do not keep the evaluation with the run, nor in MLflow.",
)
@click.option(
    "--record", "recording", metavar="DIR", help="Record the episodes as a log, for --data."
)
@click.option(
    "--opponent",
    "opponents",
    multiple=True,
    metavar="AGENT=WHO",
    help="With several agents: let this one be played by another run, RUN or RUN@STEP, or at "
    "random: AGENT=random; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@debug_option
def evaluate(
    run: str,
    episodes: int,
    env: str,
    seed: int,
    checkpoint: str,
    video: bool,
    trust: bool,
    no_record: bool,
    recording: str | None,
    opponents: tuple[str, ...],
    as_json: bool,
) -> None:
    """Evaluate a checkpoint of a run with greedy episodes.

    RUN is the id of a run or its first characters, its name, its folder, last, best:ENV, or a
    group, of which the best run is taken; RUN@STEP is the checkpoint at a step, models:/NAME@ALIAS
    a model in MLflow. What is not in the runs folder is downloaded from MLflow. A run that was not
    made here may name code to import; that needs --trust. The scores are kept with the run, in its
    folder and in MLflow as later_eval/… at the step of the checkpoint.
    """
    from rlplug.checkpoint import find_checkpoint

    played = _parsed(opponents)
    # Before the import of torch, so that a wrong name is answered at once.
    path = find_checkpoint(run, checkpoint)
    from rlplug.tracking.console import console_for

    console = console_for()
    console.say(f"preparing {episodes:,} episodes with {path.name} of {run} …")
    with starting():
        from rlplug.runs import evaluate as later

    done = later.evaluate(
        path,
        env=env,
        episodes=episodes,
        seed=seed,
        video=video,
        trust=trust,
        record=not no_record,
        console=console,
        recording=recording,
        opponents=played,
    )
    if done.not_tracked:
        where = "recorded" if done.recorded is None else "in MLflow"
        print(f"rlplug: not {where}: {done.not_tracked}.", file=sys.stderr)
    if as_json:
        click.echo(json.dumps(_as_json(done)))
    else:
        _print(done)


def _parsed(opponents: tuple[str, ...]) -> dict[str, str]:
    """Who plays each agent of the `--opponent` options."""
    played: dict[str, str] = {}
    for text in opponents:
        agent, _, who = text.partition("=")
        if not (agent and who):
            raise RequestError(
                f"--opponent takes AGENT=WHO, got {text!r}.",
                f"try: --opponent {agent or 'AGENT'}={who or 'random'}",
            )
        if agent in played:
            raise RequestError(
                f"the opponent {agent!r} is given twice.",
                f"leave out --opponent {agent}={played[agent]}, or --opponent {text}",
            )
        played[agent] = who
    return played


def _print(done: Evaluated) -> None:
    metrics = done.metrics
    shown = {name: format_number(value) for name, value in metrics.items()}
    rows = {
        "return": f"{shown['eval/return_mean']} ± {shown['eval/return_std']}",
        "lowest, highest": f"{shown['eval/return_min']}, {shown['eval/return_max']}",
        "interquartile mean": shown["eval/return_iqm"],
        "length": shown["eval/length_mean"],
        "episodes": f"{metrics['eval/episodes']:,.0f} in {done.environment}, greedy",
        "checkpoint": f"of step {done.step:,}, {format_path(done.checkpoint)}",
    }
    for name, value in shown.items():
        if name.startswith(OF_AGENT):
            # The name of an agent may have slashes.
            agent = name.removeprefix(OF_AGENT).removesuffix("/return_mean")
            rows[f"return of {agent}"] = value
    if done.opponents:
        rows["opponents"] = ", ".join(f"{agent}={who}" for agent, who in done.opponents.items())
    if done.video is not None:
        rows["video"] = format_path(done.video)
    if done.recording is not None:
        rows["episodes in"] = format_path(done.recording)
    if done.recorded is not None:
        rows["recorded"] = format_path(done.recorded)
    for line in in_columns(rows):
        click.echo(line)


def _as_json(done: Evaluated) -> dict[str, object]:
    return {
        "run_id": done.run_id,
        "step": done.step,
        "checkpoint": str(done.checkpoint),
        "environment": done.environment,
        "opponents": done.opponents,
        "metrics": done.metrics,
        "recorded": None if done.recorded is None else str(done.recorded),
        "video": None if done.video is None else str(done.video),
    }
