"""`rlplug run`: train, and record the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.options import PROFILE, SAVE_EPISODES, SEED, option, training_options, with_options
from rlplug.cli.process import Start
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.registry import Registry
from rlplug.scale.launcher import place_of_torchrun

if TYPE_CHECKING:
    from rlplug.runs.prepare import Prepared
    from rlplug.runs.request import Request

__all__ = ["make_request", "resume_or_start", "run"]

_NOT_WITH_LIKE = {
    "run__algorithm": "--algo",
    "config": "--config",
    "run__preset": "--preset",
    "run__addons": "--with",
}


@click.command(cls=Command)
@training_options("Seeds to run, each in its own process: 5 (0 to 4), 0-4, or 1,2,5.")
@with_options(SEED, SAVE_EPISODES)
@option("--like RUN", "Run as another run was run.", rare=True, complete=complete_runs)
@option("--dry-run", "Check everything and print the resolved options.")
@option("--trace-hooks", "Report seconds and gradient norms of each hook.", rare=True)
@PROFILE
def run(
    seeds: str | None,
    jobs: int | None,
    like: str | None,
    resume_existing: bool,
    dry_run: bool,
    trust: bool,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Train an algorithm, and record the run in MLflow.

    \b
    rlplug run --algo linucb
    rlplug run --algo ppo --env CartPole-v1 --set learning_rate=1e-3 --seeds 5
    """
    from rlplug.runs.request import find_plugins, layers_of
    from rlplug.tracking.console import console_for

    place = place_of_torchrun()
    if place is not None and place.index > 0:
        from rlplug.runs.learners import follow

        # The options come from the first process.
        return 0 if dry_run else follow(place)
    name = flags["tracking__run_name"] or ""
    if resume_existing and not name:
        raise RequestError("--resume-existing needs --name.", "try: --name NAME")
    request, registry = make_request(**flags), Registry.installed()
    likeness = None
    if like is not None:
        from rlplug.runs.recorded import like_run

        for other in [flag for key, flag in _NOT_WITH_LIKE.items() if flags[key]]:
            message = f"{other} cannot be used with --like, which takes it from run {like}."
            raise RequestError(message, "try: --set, --seed or --steps, to change single options")
        request, likeness = like_run(like, request, trust=trust)
    # Before the import of torch, so that a wrong name is answered at once.
    layers = layers_of(request)
    found = find_plugins(layers, registry)
    chosen = _seeds(request, seeds, jobs)
    console = None if quiet or dry_run else console_for()
    if console is not None:
        env = layers.section("run", "env")
        plugins = " + ".join(one.name for one in found)
        console.say(f"preparing {plugins}{f' on {env}' if env else ''} …")
    from rlplug.runs.prepare import prepare

    prepared = prepare(request, registry)
    if dry_run:
        _print_prepared(prepared, chosen)
        return 0
    env, presets = prepared.config.run.env, prepared.algorithm.plugin.presets
    tuned = [name for name, options in presets.items() if options.get("run.env") == env]
    if console is not None and tuned and not prepared.config.run.preset:
        console.say(f"options tuned for {env}: --preset {tuned[0]}")
    if chosen:
        from rlplug.cli.groups import finish_group
        from rlplug.runs.groups.asked import Asked
        from rlplug.runs.groups.life import run_group

        asked = Asked.of_seeds(prepared, chosen)
        return finish_group(
            lambda display: run_group(asked, jobs or 0, display, resume_existing=resume_existing),
            quiet=quiet,
            as_json=as_json,
        )
    from rlplug.cli.outcome import finish
    from rlplug.runs.life import Run

    attached: dict[str, Any] = {"console": console, "listeners": (Start(),)}
    if resume_existing:
        shown = {"quiet": quiet, "as_json": as_json}
        return resume_or_start(name, prepared, attached, trust=trust, **shown)
    training = Run(prepared=prepared, like=likeness, **attached)
    return finish(training.carry_out, quiet=quiet, as_json=as_json)


def _seeds(request: Request, seeds: str | None, jobs: int | None) -> tuple[int, ...]:
    """Those of `--seeds`; empty without it."""
    scale = request.flags.get("scale", {})
    if seeds is None and jobs is not None:
        raise RequestError("--jobs needs --seeds.", "try: --seeds 5")
    if seeds is None:
        if scale.get("engine") == "ray" and not {"runners", "learners"} & {*scale}:
            message = "--place ray needs --seeds or --learners."
            raise RequestError(message, "try: --runners 4, for the environments of one run")
        return ()
    if place_of_torchrun() is not None:
        message = "--seeds cannot be used under torchrun."
        raise RequestError(message, "try: rlplug run --seeds N --learners 2, without torchrun")
    from rlplug.runs.groups.seeds import parse_seeds, refuse_seed_option

    refuse_seed_option(request)
    return parse_seeds(seeds)


def _print_prepared(prepared: Prepared, seeds: tuple[int, ...]) -> None:
    """Print options as TOML with their origins, then plugins, hook order and memory."""
    from rlplug.config.secrets import masked
    from rlplug.config.toml import as_mapping
    from rlplug.runs.life import check

    # First, so that errors are raised before anything is printed.
    order, memory = prepared.hooks().order(), check(prepared)
    _, *lines = _toml_lines(masked(as_mapping(prepared.config)), ())
    width = max(len(line) for line, _ in lines)
    for line, path in lines:
        comment = click.style(f"  # {prepared.origins.get(path)}", dim=True)
        click.echo(f"{line:<{width}}{comment}" if path else line)
    parts = {
        "plugins": [one.label for one in (prepared.algorithm, *prepared.addons)],
        "hooks, in call order": [f"{hook:<32} {' → '.join(of)}" for hook, of in order.items()],
        "memory": [memory] if memory else [],
        "seeds": [", ".join(map(str, seeds))] if seeds else [],
    }
    for heading, rows in parts.items():
        if rows:
            click.echo("\n  ".join([f"\n{click.style(heading, bold=True)}", *rows]))


def _toml_lines(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The lines of a TOML file, each with the option that it sets."""
    from rlplug.config.toml import bare_key, toml_value

    own = [name for name, value in values.items() if not isinstance(value, Mapping)]
    if own:
        yield from (("", ""), (f"[{'.'.join(map(bare_key, path))}]", ""))
    for name in own:
        yield f"{bare_key(name)} = {toml_value(values[name])}", ".".join((*path, name))
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _toml_lines(value, (*path, name))


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
        run = Run(prepared=prepared, resumed=resumed, **attached)
        return finish(run.carry_out, quiet=quiet, as_json=as_json)


def make_request(
    *,
    config: Path | None,
    settings: tuple[str, ...],
    tags: tuple[str, ...],
    profile: bool = False,
    trace_hooks: bool = False,
    **flags: Any,
) -> Request:
    """The flags as sections of a config file: `run__env` is `env` in `[run]`."""
    from rlplug.config.sources import PROFILE, Setting, parse_setting, parse_tags
    from rlplug.runs.request import FLAGS, Request

    place, record = place_of_torchrun(), flags.get("sampling__record")
    if place is not None:
        flags["scale__learners"] = flags["scale__learners"] or place.size
    if flags["scale__runners"]:
        flags["scale__engine"] = "ray"
    if record:
        flags["sampling__record"] = str(absolute_path(record, "--save-episodes"))
    sections: dict[str, dict[str, Any]] = {}
    for flag, value in {**flags, "tracking__tags": parse_tags(tags)}.items():
        section, _, name = flag.partition("__")
        if value not in (None, (), {}):
            chosen = list(value) if isinstance(value, tuple) else value
            sections.setdefault(section, {})[name] = chosen
    extra = [PROFILE] if profile else []
    extra += [Setting("learner.trace_hooks", True)] if trace_hooks else []
    chosen_settings = (*map(parse_setting, settings), *extra)
    return Request(config=config, flags=sections, flag_names=FLAGS, settings=chosen_settings)
