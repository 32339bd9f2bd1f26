"""`rlplug eval`: evaluate a tracked run on fresh episodes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_environments
from rlplug.cli.options import (
    COUNT,
    JSON,
    NO_SAVE,
    OWN_SEED,
    RUN,
    SAVE_EPISODES,
    TRUST,
    option,
    with_options,
)
from rlplug.cli.output import print_json, print_next, print_rows
from rlplug.cli.process import started
from rlplug.errors import RequestError
from rlplug.quantities import format_number, format_path

if TYPE_CHECKING:
    from rlplug.runs.evaluate import Evaluated

_OPPONENT = "Let random or another run, RUN or RUN@STEP, play an agent; repeatable."


@click.command("eval", cls=Command)
@RUN
@option("--episodes N", "Number of episodes.", type=COUNT, default=100)
@option("--env ID", "Environment; default: that of the run.", complete=complete_environments)
@with_options(OWN_SEED, option("--video", "Record a video of one episode (needs rlplug[video])."))
@option("--opponent AGENT=WHO", _OPPONENT, "opponents", many=True, rare=True)
@with_options(SAVE_EPISODES, NO_SAVE, TRUST, JSON)
def evaluate(
    run: str,
    env: str | None,
    episodes: int,
    opponents: tuple[str, ...],
    sampling__record: str | None,
    no_save: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Evaluate the best checkpoint of a run with greedy episodes.

    RUN is an id or its first characters, a name, a folder, last, best:ENV, or a group, of which
    the best run is taken. RUN@STEP and RUN@last are other checkpoints, models:/NAME@ALIAS is a
    model in MLflow. The same seed gives the same episodes for every policy.

    \b
    rlplug eval last
    rlplug eval best:CartPole-v1 --episodes 500 --video
    """
    from rlplug.checkpoint import find_checkpoint
    from rlplug.tracking.console import console_for

    played = dict(text.split("=", 1) for text in opponents if "=" in text)
    if len(played) < len(opponents) or not all(played.values()):
        raise RequestError(
            f"--opponent takes AGENT=WHO, once for each agent, got {', '.join(opponents)}.",
            "try: --opponent AGENT=random",
        )
    # Before the import of torch, so that a wrong name is answered at once.
    path = find_checkpoint(run)
    console = console_for()
    console.say(f"preparing {episodes:,} episodes with {path.name} of {run} …")
    from rlplug.runs import evaluate as later

    started()
    done = later.evaluate(
        path,
        env=env or "",
        episodes=episodes,
        record=not no_save,
        recording=sampling__record,
        opponents=played,
        console=console,
        **how,
    )
    if done.not_tracked:
        where = "saved" if done.recorded is None else "in MLflow"
        print(f"rlplug: not {where}: {done.not_tracked}.", file=sys.stderr)
    if as_json:
        print_json({"run_id": done.run_id, "step": done.step, **_facts(done)})
        return
    print_rows(_rows(done))
    print_next(f"promote {done.run_id[:8]}@{done.step} NAME")


def _facts(done: Evaluated) -> dict[str, Any]:
    names = ("checkpoint", "environment", "opponents", "metrics", "recorded", "video")
    return {name: getattr(done, name) for name in names}


def _rows(done: Evaluated) -> dict[str, str]:
    from rlplug.review.record import OF_AGENT

    shown = {name: format_number(value) for name, value in done.metrics.items()}
    rows = {
        "return": f"{shown['eval/return_mean']} ± {shown['eval/return_std']}",
        "lowest, highest": f"{shown['eval/return_min']}, {shown['eval/return_max']}",
        "interquartile mean": shown["eval/return_iqm"],
        "length": shown["eval/length_mean"],
        "episodes": f"{shown['eval/episodes']} in {done.environment}, greedy",
        "checkpoint": f"of step {done.step:,}, {format_path(done.checkpoint)}",
    }
    for name, value in shown.items():
        if name.startswith(OF_AGENT):
            # The name of an agent may have slashes.
            agent = name.removeprefix(OF_AGENT).removesuffix("/return_mean")
            rows[f"return of {agent}"] = value
    if done.opponents:
        rows["opponents"] = ", ".join(f"{agent}={who}" for agent, who in done.opponents.items())
    files = {"video": done.video, "episodes in": done.recording, "saved": done.recorded}
    return rows | {name: format_path(file) for name, file in files.items() if file is not None}
