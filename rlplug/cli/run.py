"""`rlplug run`: train, and record the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import RunCommand
from rlplug.cli.completion import (
    complete_runs,
    complete_settings,
)
from rlplug.cli.parameters import debug_option, trust_option
from rlplug.cli.process import starting
from rlplug.cli.run_options import (
    addons_option,
    algo_option,
    config_option,
    env_option,
    preset_option,
    steps_option,
)
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.registry import FoundPlugin, Registry
from rlplug.scale.launcher import is_follower, place_of_torchrun

if TYPE_CHECKING:
    from rlplug.config.sources import Layers
    from rlplug.runs.prepare import Prepared
    from rlplug.runs.request import Request
    from rlplug.tracking.provenance import Likeness

__all__ = ["make_request", "resume_or_start", "run"]


@click.command(cls=RunCommand, context_settings={"allow_extra_args": True})
@algo_option
@env_option
@click.option(
    "--data",
    "files",
    multiple=True,
    metavar="FILE",
    help="Learn from logged rows: Parquet, CSV, npz, or a recording; repeatable. See options data.",
)
@click.option(
    "--record",
    metavar="DIR",
    help="Record the experience as a log, with the probabilities of actions, for --data.",
)
@steps_option
@click.option("--seed", type=int, metavar="N", help="Random seed.")
@click.option(
    "--seeds", metavar="SEEDS", help="Several seeds, a process each: 5 (0 to 4), 0-4, or 1,2,5."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many of the seeds run at a time; default: by cores and compute.num_threads.",
)
@click.option(
    "--learners",
    type=click.IntRange(min=1),
    metavar="N",
    help="Data-parallel learners, a process each, that share environments and batches.",
)
@click.option(
    "--scale",
    "engine",
    type=click.Choice(["local", "ray"]),
    help="Where environments are stepped: in this process, or by runners on a Ray cluster.",
)
@click.option(
    "--runners",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --scale ray: runners, which share the environments.",
)
@preset_option
@click.option(
    "--init-from",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Load initial weights from a tracked run: an id, a name, last, best:ENV, RUN@STEP.",
)
@addons_option
@click.option(
    "--like",
    metavar="RUN",
    shell_complete=complete_runs,
    help="The same run again: options, plugins, seed. What differs is printed and recorded.",
)
@trust_option
@config_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_settings,
    help="Set an option, overriding the file: gamma=0.9, sampling.num_envs=16.",
)
@click.option(
    "--tag", "tags", multiple=True, metavar="KEY=VALUE", help="MLflow tag of the run; repeatable."
)
@click.option(
    "--profile",
    is_flag=True,
    help="Trace some updates with torch's profiler, and print where the time went.",
)
@click.option(
    "--resume-or-start",
    "name",
    metavar="NAME",
    help="Go on with the run of this name, or start it: for jobs that a scheduler requeues.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check everything and print the resolved config without running.",
)
@click.option(
    "--trace-hooks",
    is_flag=True,
    help="Report the seconds of each plugin's hooks, and gradient norms around them.",
)
@click.option("--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
@debug_option
def run(
    *,
    seeds: str | None,
    jobs: int | None,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    name: str | None,
    like: str | None,
    trust: bool,
    **flags: Any,
) -> int:
    """Train an installed algorithm, and record the run in MLflow.

    \b
    rlplug run --algo linucb
    rlplug run --config run.toml --seed 1 --set alpha=0.5
    rlplug run --algo a2c --seeds 5      seeds 0 to 4, and what they come to
    rlplug run --algo linucb --data clicks.parquet      learn from a log
    rlplug options                 options of every run, for --set
    """
    from rlplug.runs.request import find_plugins, layers_of
    from rlplug.tracking.console import console_for

    if is_follower():
        from rlplug.cli.learner_process import follow_torchrun

        return 0 if dry_run else follow_torchrun()
    others = {**flags, "seeds": seeds, "resume_or_start": name}
    _refuse_empty({**others, "like": like})
    request, registry = make_request(name=name, **flags), Registry.installed()
    likeness: Likeness | None = None
    if like is not None:
        request, likeness = _like(like, request, others, trust=trust)
    # Before the import of torch, so that a wrong name is answered at once.
    layers = layers_of(request)
    found = find_plugins(layers, registry)
    chosen = _seeds(request, seeds, jobs)
    with starting() as start:
        console = None if quiet or dry_run else console_for()
        if console is not None:
            console.say(_preparing(found, layers))
        from rlplug.runs.prepare import prepare

        prepared = prepare(request, registry)
        if dry_run:
            return _check(prepared, chosen)
        if not chosen:
            from rlplug.cli.outcome import finish
            from rlplug.runs.life import Run

            attached: dict[str, Any] = {"console": console, "listeners": (start,)}
            if name is not None:
                return resume_or_start(
                    name, prepared, attached, trust=trust, quiet=quiet, as_json=as_json
                )
            return finish(
                Run(prepared=prepared, like=likeness, **attached).carry_out,
                quiet=quiet,
                as_json=as_json,
            )
    # Here the signal that asks for a checkpoint is no longer ignored: the seeds are told of it.
    return _run_seeds(prepared, chosen, jobs or 0, bool(name), quiet=quiet, as_json=as_json)


def _preparing(found: Sequence[FoundPlugin], layers: Layers) -> str:
    """What stands there while torch and MLflow are imported."""
    names = " + ".join(one.name for one in found)
    env = layers.section("run", "env")
    return f"preparing {names}{f' on {env}' if env else ''} …"


def _check(prepared: Prepared, seeds: tuple[int, ...]) -> int:
    from rlplug.cli.dry_run import print_prepared
    from rlplug.runs.life import check

    print_prepared(prepared, check(prepared))
    if seeds:
        click.echo(f"\nseeds\n  {', '.join(map(str, seeds))}")
    return 0


def _seeds(request: Request, seeds: str | None, jobs: int | None) -> tuple[int, ...]:
    """Those of `--seeds`; empty without it."""
    if seeds is None and jobs is not None:
        raise RequestError("--jobs is of several seeds.", "try: --seeds 5 with it, or leave it out")
    if seeds is None:
        return ()
    if place_of_torchrun() is not None:
        raise RequestError(
            "several seeds cannot share the processes of torchrun.",
            "try: rlplug run --seeds N --learners 2, without torchrun",
        )
    from rlplug.runs.groups.seed_numbers import parse_seeds, refuse_seed_option

    refuse_seed_option(request)
    return parse_seeds(seeds)


def _run_seeds(
    prepared: Prepared,
    seeds: tuple[int, ...],
    jobs: int,
    resume_existing: bool,
    *,
    quiet: bool,
    as_json: bool,
) -> int:
    from rlplug.cli.groups import finish_group
    from rlplug.runs.groups.seeds import run_seeds

    return finish_group(
        lambda display: run_seeds(prepared, seeds, jobs, display, resume_existing=resume_existing),
        quiet=quiet,
        as_json=as_json,
    )


def _like(
    run: str, request: Request, flags: Mapping[str, Any], *, trust: bool
) -> tuple[Request, Likeness]:
    """The run that is to be run again; what would make another run of it is refused."""
    others = {"algo": "--algo", "config": "--config", "preset": "--preset", "addons": "--with"}
    others |= {"seeds": "--seeds", "resume_or_start": "--resume-or-start"}
    given = [flag for name, flag in others.items() if flags[name]]
    if given:
        raise RequestError(
            f"--like is run {run} again, with its plugins and options; {given[0]} does not fit.",
            f"try: without {given[0]}; single options can be changed by --set, --seed, --steps",
        )
    from rlplug.runs.recorded import like_run

    return like_run(run, request, trust=trust)


def resume_or_start(
    name: str,
    prepared: Prepared,
    attached: Mapping[str, Any],
    *,
    trust: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Go on with the run of this name, or start it; returns the exit code."""
    from rlplug.cli.outcome import finish
    from rlplug.runs.life import Run
    from rlplug.runs.resume import FinishedError, resumable_by_name
    from rlplug.tracking.status import name_lock

    # Held to the end: of two jobs that start at once, one starts the run.
    with name_lock(name):
        try:
            resumed = resumable_by_name(name, prepared, trust=trust)
        except FinishedError as finished:
            if not quiet:
                click.echo(str(finished).splitlines()[0])
            return 0
        return finish(
            Run(prepared=prepared, resumed=resumed, **attached).carry_out,
            quiet=quiet,
            as_json=as_json,
        )


def _refuse_empty(flags: Mapping[str, Any]) -> None:
    """Refuse empty values, which come from unset variables in scripts."""
    empty = [
        name
        for name in ("algo", "env", "preset", "init_from", "like", "resume_or_start")
        if flags[name] == ""
    ]
    if empty:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in empty)
        raise RequestError(f"{names}: the value is empty.", "try: leave it out")


def make_request(
    *,
    name: str | None = None,
    algo: str | None = None,
    env: str | None = None,
    files: tuple[str, ...] = (),
    record: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    learners: int | None = None,
    engine: str | None = None,
    runners: int | None = None,
    preset: str | None = None,
    init_from: str | None = None,
    addons: tuple[str, ...] = (),
    config: Path | None = None,
    settings: tuple[str, ...] = (),
    tags: tuple[str, ...] = (),
    profile: bool = False,
    trace_hooks: bool = False,
) -> Request:
    """The flags as sections of a config file."""
    from rlplug.config.sources import PROFILE, Setting, parse_setting, parse_tags
    from rlplug.runs.request import FLAGS, Request

    values = {
        "algorithm": algo,
        "env": env,
        "steps": steps,
        "seed": seed,
        "preset": preset,
        "init_from": init_from,
        "addons": list(addons),
    }
    flags: dict[str, Any] = {
        "run": {name: value for name, value in values.items() if value not in (None, [])}
    }
    if files:
        flags["data"] = {"files": list(files)}
    if record:
        flags["sampling"] = {"record": str(absolute_path(record, "--record"))}
    place = place_of_torchrun()
    if learners is None and place is not None:
        learners = place.size
    scale = {"learners": learners, "engine": engine, "runners": runners}
    scale = {key: value for key, value in scale.items() if value is not None}
    if scale:
        flags["scale"] = scale
    tracking = {"run_name": name, "tags": parse_tags(tags)}
    flags["tracking"] = {key: value for key, value in tracking.items() if value}
    return Request(
        config=config,
        flags=flags,
        flag_names=FLAGS,
        settings=(
            *map(parse_setting, settings),
            *([PROFILE] if profile else []),
            *([Setting("learner.trace_hooks", True)] if trace_hooks else []),
        ),
    )
