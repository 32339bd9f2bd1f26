"""`rlplug run`: train, and record the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.complete import names_of
from rlplug.cli.debug import debug_option
from rlplug.errors import RequestError
from rlplug.registry import ADDON, ALGORITHM

if TYPE_CHECKING:
    from rlplug.runs.prepare import Prepared, Request

__all__ = ["run"]


@click.command()
@click.option("--algo", metavar="NAME", shell_complete=names_of(ALGORITHM), help="The algorithm.")
@click.option("--env", metavar="ID", help="The environment; without it, the algorithm's own.")
@click.option("--steps", type=int, metavar="N", help="Environment steps to take.")
@click.option("--seed", type=int, metavar="N", help="Seed of all random numbers of the run.")
@click.option(
    "--preset", metavar="NAME", help="Options that the algorithm names; see plugins show."
)
@click.option("--init-from", metavar="RUN_ID", help="Start with the weights of a tracked run.")
@click.option(
    "--with",
    "addons",
    multiple=True,
    metavar="ADDON",
    shell_complete=names_of(ADDON),
    help="An add-on that takes part; repeat for several, in order.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A TOML file of options.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="One option, over the file: gamma=0.9, sampling.num_envs=16.",
)
@click.option(
    "--tag", "tags", multiple=True, metavar="KEY=VALUE", help="A tag of the run in MLflow."
)
@click.option("--dry-run", is_flag=True, help="Check everything and print what would be run.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
@debug_option
def run(dry_run: bool, quiet: bool, as_json: bool, **given: Any) -> int:
    """Train with an algorithm that is installed.

    \b
    rlplug run --algo linucb
    rlplug run --config run.toml --seed 1 --set alpha=0.5
    rlplug options                 what --set can say of every run
    """
    from rlplug.registry import Registry
    from rlplug.runs.prepare import prepare

    _refuse_empty(given)
    prepared = prepare(_request(**given), Registry.installed())
    if dry_run:
        from rlplug.cli.dry_run import print_prepared
        from rlplug.runs.run import check

        print_prepared(prepared, check(prepared))
        return 0
    return _carry_out(prepared, quiet=quiet, as_json=as_json)


def _refuse_empty(given: Mapping[str, Any]) -> None:
    """A variable of a script that was never set is no way to ask for a default."""
    empty = [name for name in ("algo", "env", "preset", "init_from") if given[name] == ""]
    if empty:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in empty)
        raise RequestError(f"{names}: nothing was given.", "try: leave it out")


def _carry_out(prepared: Prepared, *, quiet: bool, as_json: bool) -> int:
    from rlplug.cli.outcome import print_interrupted, print_json, print_result
    from rlplug.runs.result import RunInterrupted
    from rlplug.runs.run import carry_out

    try:
        result = carry_out(prepared, show=not quiet)
    except RunInterrupted as interrupted:
        if as_json:
            print_json(interrupted.result)
        print_interrupted(interrupted)
        return 143 if interrupted.by_signal else 130
    if as_json:
        print_json(result)
    elif not quiet:
        print_result(result)
    return 0


def _request(
    algo: str | None,
    env: str | None,
    steps: int | None,
    seed: int | None,
    preset: str | None,
    init_from: str | None,
    addons: tuple[str, ...],
    config: Path | None,
    settings: tuple[str, ...],
    tags: tuple[str, ...],
) -> Request:
    """What the flags say, as the sections of a file would."""
    from rlplug.config.sources import parse_setting, parse_tag
    from rlplug.runs.prepare import Request

    said = {
        "algorithm": algo,
        "env": env,
        "steps": steps,
        "seed": seed,
        "preset": preset,
        "init_from": init_from,
        "addons": list(addons),
    }
    flags: dict[str, Any] = {
        "run": {name: value for name, value in said.items() if value not in (None, [])}
    }
    if tags:
        flags["tracking"] = {"tags": dict(parse_tag(text) for text in tags)}
    return Request(
        config=config, flags=flags, settings=tuple(parse_setting(text) for text in settings)
    )
