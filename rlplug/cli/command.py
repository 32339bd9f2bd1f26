"""Click commands with three levels of help, and a suggestion for every unknown word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from rlplug.errors import closest
from rlplug.registry import ALGORITHM, Registry

__all__ = ["Command", "Group"]

_COMMANDS = {
    "algorithms": "plugins list",
    "evaluate": "eval",
    "fit": "run",
    "help": "--help",
    "learn": "run",
    "sweep": "tune",
    "test": "eval",
    "train": "run",
}
"""Commands of other tools, and the ones that do the same here."""


def _show_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        for option in context.command.params:
            if isinstance(option, click.Option):
                option.hidden = False
        context.meta["all"] = True
        click.echo(context.get_help())
        context.exit()


def _own_options() -> list[click.Parameter]:
    """The options of every command; `main` reads `--debug`, as parsing may fail."""
    return [
        click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options and exit.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            hidden=True,
            expose_value=False,
            help="Show tracebacks of errors.",
        ),
    ]


class Command(click.Command):
    """A command: `-h` lists the usual options, `--help-all` lists all of them."""

    allow_extra_args = True

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += _own_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            message = f"No such option {error.option_name!r}.{self._meant(error.option_name)}"
            raise click.UsageError(message, ctx) from error
        if rest and not ctx.resilient_parsing:
            message = f"Unexpected argument {rest[0]!r}."
            if self._flags() & {"--algo"}:
                message += f"\n  try: {ctx.command_path} {_as_option(rest[0])}"
            raise click.UsageError(message, ctx)
        return rest

    def _flags(self) -> set[str]:
        return {flag for parameter in self.params for flag in parameter.opts}

    def _meant(self, flag: str) -> str:
        """The flag or the option that a person may have meant."""
        from rlplug.config.names import meant_by, sections_with

        flags = self._flags()
        written = flag.lstrip("-").replace("-", "_")
        name = meant_by(written)
        own = f"--{name.replace('_', '-')}"
        begun = [one for one in flags if len(one) > 2 and flag.startswith(one)]
        if own in flags or begun:
            return f"\n  try: {own if own in flags else begun[0]}"
        homes = sections_with(name)
        near = closest(flag, flags) if name == written and not homes else ""
        if near:
            return f" Did you mean {near!r}?"
        if "--set" not in flags:
            return ""
        return f"\n  try: --set {homes[0] + '.' if homes else ''}{name}=VALUE"


class Group(click.Group):
    """A group of commands, listed with whole summaries in the order in which they were added.

    `files` names commands that are in files of these names.
    """

    command_class = Command

    def __init__(self, *arguments: Any, files: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += _own_options()
        self._files = files

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._files, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._files:
            values = vars(import_module(f"rlplug.cli.{cmd_name}")).values()
            commands = [value for value in values if isinstance(value, click.Command)]
            return next(command for command in commands if command.name == cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.parent is not None or "all" in ctx.meta:
            names = self.list_commands(ctx)
            commands = [command for name in names if (command := self.get_command(ctx, name))]
            with formatter.section("Commands"):
                formatter.write_dl(
                    [(str(command.name), command.get_short_help_str(1000)) for command in commands]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        names = self.list_commands(ctx)
        if word in names or word.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        known = {name: name for name in names}
        if ctx.parent is None:
            installed = Registry.installed().grouped(ALGORITHM)
            known = {**{name: f"run --algo {name}" for name in installed}, **_COMMANDS, **known}
        near = closest(word, known)
        meant = f"\n  try: {ctx.command_path} {known[near]}" if near else ""
        raise click.UsageError(f"No such command {word!r}.{meant}", ctx)


def _as_option(word: str) -> str:
    """The option that sets what was given as a bare word."""
    if "=" in word:
        return f"--set {word}"
    if word.endswith(".toml"):
        return f"--config {word}"
    return f"--env {word}" if re.search(r"-v\d+$|/", word) else f"--algo {word}"
