"""Click commands that refuse an option given twice, and say what was meant by a wrong word."""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher

import click

from rlplug.errors import closest
from rlplug.registry import ALGORITHM, Registry

__all__ = ["Command", "Group", "RunCommand"]

_COMMANDS = {
    "algorithms": "plugins list",
    "dashboard": "ui",
    "evaluate": "eval",
    "fit": "run",
    "help": "--help",
    "info": "plugins show",
    "learn": "run",
    "mlflow": "ui",
    "optimize": "tune",
    "sweep": "tune",
    "test": "eval",
    "train": "run",
}
"""Commands of other tools, and the ones that do the same here."""

_RUN_OPTIONS = {
    "--addon": "--with ADDON",
    "--algorithm": "--algo NAME",
    "--env-id": "--env ID",
    "--environment": "--env ID",
    "--max-steps": "--steps N",
    "--name": "--set tracking.run_name=NAME",
    "--timesteps": "--steps N",
    "--total-steps": "--steps N",
    "--total-timesteps": "--steps N",
}
"""Options of other tools, and the ones that do the same here."""

_ENV_ID = re.compile(r".*(-v\d+|/.*)\Z")


class Command(click.Command):
    """Refuses an option that is given twice, of which click would use the last value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # click calls `--env` and `--video` similar to `--device`.
            name = error.option_name
            near = [one for one in error.possibilities or () if _is_like(one, name)]
            better = click.NoSuchOption(name, possibilities=near or None, ctx=ctx)
            if any("--set" in one.opts for one in self.params):
                raise _no_such_option(better, ctx) from error
            raise better from error
        _refuse_repeated(self, ctx, given)
        return rest


class Group(click.Group):
    """The same for a group; an unknown command is answered with the one that was meant."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        _refuse_repeated(self, ctx, given)
        return rest

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        known = self.get_command(ctx, word) is not None
        if not (known or word.startswith("-") or ctx.resilient_parsing):
            raise click.UsageError(f"No such command {word!r}.{self._meant(ctx, word)}", ctx)
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, word: str) -> str:
        lines = {name: name for name in self.commands}
        if ctx.parent is None:
            for name, command in self.commands.items():
                if isinstance(command, click.Group):
                    lines = {**{below: f"{name} {below}" for below in command.commands}, **lines}
            installed = Registry.installed().grouped(ALGORITHM)
            lines = {**{name: f"run --algo {name}" for name in installed}, **_COMMANDS, **lines}
        near = word.lower() if word.lower() in lines else closest(word, lines)
        return f"\n  try: {ctx.command_path} {lines[near]}" if near else ""


class RunCommand(Command):
    """`rlplug run`: a stray word is answered with the option for it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise click.UsageError(
                f"Got unexpected extra argument ({' '.join(rest)})\n"
                f"  try: {ctx.command_path} {_as_option(rest[0])}",
                ctx,
            )
        return rest


def _refuse_repeated(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """Options that may be repeated are refused with the same value."""
    if ctx.resilient_parsing:
        return
    values, _, order = command.make_parser(ctx).parse_args(args)
    for option, times in Counter(order).items():
        if times > 1 and isinstance(option, click.Option) and not option.is_eager:
            spelled = max(option.opts, key=len)
            if not option.multiple:
                raise click.UsageError(f"Option {spelled!r} is given {times} times.", ctx)
            value, most = Counter(values[option.name]).most_common(1)[0]
            if most > 1:
                raise click.UsageError(f"Option '{spelled} {value}' is given {most} times.", ctx)


def _is_like(one: str, other: str) -> bool:
    return SequenceMatcher(None, one, other).ratio() > 0.75


def _no_such_option(error: click.NoSuchOption, ctx: click.Context) -> click.UsageError:
    from rlplug.config.names import meant_by, sections_with

    spelled = error.option_name
    said = f"No such option {spelled!r}."
    if spelled in _RUN_OPTIONS:
        return click.UsageError(f"{said}\n  try: {_RUN_OPTIONS[spelled]}", ctx)
    written = spelled.lstrip("-").replace("-", "_")
    name = meant_by(written)
    homes = sections_with(name)
    setting = f"--set {homes[0]}.{name}=VALUE" if homes else f"--set {name}=VALUE"
    if name != written or homes or not error.possibilities:
        return click.UsageError(f"{said}\n  try: {setting}", ctx)
    near = error.possibilities[0]
    return click.UsageError(
        f"{said} Did you mean {near!r}?\n  for an option of the algorithm: {setting}", ctx
    )


def _as_option(word: str) -> str:
    if "=" in word:
        return f"--set {word}"
    if word.endswith(".toml"):
        return f"--config {word}"
    return f"--env {word}" if _ENV_ID.match(word) else f"--algo {word}"
