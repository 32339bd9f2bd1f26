"""How options are declared, and those that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rlplug.cli.completion import (
    Complete,
    complete_environments,
    complete_plugins,
    complete_runs,
    complete_settings,
)
from rlplug.registry import ADDON, ALGORITHM

Function = TypeVar("Function", bound=Callable[..., Any])


class _Text(click.ParamType[str]):
    """Text that is not empty, as that of an unset variable in a script is."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("the value is empty.", param, ctx)
        return str(value)


TEXT = _Text()
COUNT = click.IntRange(min=1)
FILE = click.Path(path_type=Path, dir_okay=False)


class _Option(click.Option):
    def get_help_extra(self, ctx: click.Context) -> Any:
        # Bounds are told where they are exceeded.
        return {key: value for key, value in super().get_help_extra(ctx).items() if key != "range"}


def option(
    usage: str,
    help: str,
    name: str = "",
    *,
    type: click.ParamType[Any] | Sequence[str] = TEXT,
    default: Any = None,
    many: bool = False,
    rare: bool = False,
    complete: Complete | None = None,
) -> Callable[[Function], Function]:
    """An option as it is typed, such as `--env ID`; one without a value is a flag.

    `name` is the parameter of the command that it sets, `many` options are repeatable, and `rare`
    ones are listed by `--help-all` only.
    """
    words = usage.split()
    flags = [word for word in words if word.startswith("-")]
    settings: dict[str, Any] = {"help": help, "hidden": rare, "cls": _Option}
    if len(words) == len(flags) and type is TEXT:
        settings["is_flag"] = True
    else:
        kind = type if isinstance(type, click.ParamType) else click.Choice(type)
        metavar = words[-1] if len(words) > len(flags) else None
        settings |= {"type": kind, "metavar": metavar, "multiple": many}
        settings |= {"shell_complete": complete}
        if default is not None:
            settings |= {"default": default, "show_default": default != ""}
    return click.option(*flags, *([name] if name else []), **settings)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Add options to a command, listed in this order."""

    def add(command: Function) -> Function:
        for one in reversed(options):
            command = one(command)
        return command

    return add


# -- any command -----------------------------------------------------------------------------------

RUN = click.argument("run", metavar="RUN", shell_complete=complete_runs)
RUNS = click.argument(
    "runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs
)
JSON = option("--json", "Print JSON.", "as_json")
QUIET = option("--quiet", "Print errors only.", rare=True)
TRUST = option(
    "--trust",
    "Trust a run that somebody else made: import the code that it names and read its pickles.",
    rare=True,
)
NO_SAVE = option("--no-save", "Do not save the result with the run.", rare=True)
SAVE_EPISODES = option(
    "--save-episodes DIR",
    "Save the episodes as a log, which --data reads.",
    "sampling__record",
    rare=True,
)
SET = option(
    "--set KEY=VALUE",
    "Set an option, for example gamma=0.9 or sampling.num_envs=16; repeatable.",
    "settings",
    many=True,
    complete=complete_settings,
)
DATA = option(
    "--data FILE",
    "Logged rows or episodes: Parquet, CSV, npz, or a saved folder; repeatable.",
    "data__files",
    many=True,
)
SEED = option("--seed N", "Random seed.", "run__seed", type=click.INT)
OWN_SEED = option("--seed N", "Random seed.", type=click.IntRange(min=0), default=0)
HOST = option("--host HOST", "Address to listen on.", default="127.0.0.1")

# -- training --------------------------------------------------------------------------------------

STEPS = option("--steps N", "Total number of environment steps.", "run__steps", type=click.INT)
JOBS = option("--jobs N", "Number of runs at a time.", type=COUNT, rare=True)
PROFILE = option("--profile", "Trace some updates, and print where the time went.", rare=True)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return host in ("127.0.0.1", "localhost", "::1")


def training_options(seeds_help: str) -> Callable[[Function], Function]:
    """The options of the commands that train: what is trained, where, and with which options."""
    algorithms, addons = complete_plugins(ALGORITHM), complete_plugins(ADDON)
    tag, name = "MLflow tag of the run; repeatable.", "Name of the run, the group or the study."
    engines, place = ("local", "ray"), "Where to carry out whole runs: here, or on a Ray cluster."
    environment = "Gymnasium id; default: the algorithm's environment."
    addon = "Add-on to use; repeatable, called in this order."
    preset = "Named set of options of the algorithm; see rlplug plugins show."
    initial = "Start from the weights of a run; RUN@STEP names a checkpoint."
    existing = "Go on with --name if it exists; for jobs that a scheduler restarts."
    runners = "Number of processes on a Ray cluster that step the environments of a run."
    learners = "Number of data-parallel learners of a run, which share environments and batches."
    return with_options(
        option("--algo NAME", "Algorithm to train.", "run__algorithm", complete=algorithms),
        option("--env ID", environment, "run__env", complete=complete_environments),
        STEPS,
        option("--seeds SEEDS", seeds_help),
        JOBS,
        option("--preset NAME", preset, "run__preset"),
        option("--with ADDON", addon, "run__addons", many=True, complete=addons),
        option("--config FILE", "TOML file with options.", type=FILE),
        SET,
        DATA,
        option("--init-from RUN", initial, "run__init_from", rare=True, complete=complete_runs),
        option("--name NAME", name, "tracking__run_name"),
        option("--resume-existing", existing),
        option("--tag KEY=VALUE", tag, "tags", many=True, rare=True),
        option("--place", place, "scale__engine", type=engines, rare=True),
        option("--runners N", runners, "scale__runners", type=COUNT, rare=True),
        option("--learners N", learners, "scale__learners", type=COUNT, rare=True),
        TRUST,
        QUIET,
        JSON,
    )
