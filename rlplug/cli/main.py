"""`rlplug`: the group of all commands, and what happens when one of them fails."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

import click

from rlplug.cli.debug import debug_option
from rlplug.cli.eval import evaluate
from rlplug.cli.options import options
from rlplug.cli.plugins import plugins
from rlplug.cli.run import run
from rlplug.cli.ui import ui
from rlplug.errors import RlplugError

__all__ = ["cli", "main"]

FAILED = 1
INTERRUPTED = 130


class ReaderLeftError(Exception):
    """Nobody reads standard output any more; click would make exit code 1 of a broken pipe."""


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeftError from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rlplug", message="rlplug %(version)s")
@debug_option
def cli() -> None:
    """Train decision makers: every algorithm is a plugin.

    \b
    rlplug plugins list              what is installed
    rlplug run --algo linucb         train, and record the run
    rlplug eval RUN_ID               play with what was learned
    rlplug ui                        look at the runs
    """


cli.add_command(run)
cli.add_command(evaluate)
cli.add_command(ui)
cli.add_command(options)
cli.add_command(plugins)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit code: 0, 1, 2 or 130."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _invoke(given)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (BrokenPipeError, ReaderLeftError):
        # The reader went away (`| head`): nobody is left to tell, and nothing has failed.
        _silence(sys.stdout)
        code = 0
    sys.exit(code)


def _silence(stream: TextIO) -> None:
    """Let what is still buffered go nowhere, or Python would complain on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _invoke(arguments: list[str]) -> int:
    try:
        result = cli.main(args=arguments, prog_name="rlplug", standalone_mode=False)
    except RlplugError as error:
        message = "\n  ".join([str(error), *getattr(error, "__notes__", ())])
        _complain(error, message, debug="--debug" in arguments)
        return error.exit_code
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            # A group without a command: help is the answer, not a complaint about it.
            print(error.format_message(), file=sys.stderr)
            return 2
        command = error.ctx.command_path if error.ctx is not None else "rlplug"
        message = f"{error.format_message()}\n  see: {command} --help"
        _complain(error, message, debug="--debug" in arguments)
        return 2
    except click.ClickException as error:
        _complain(error, error.format_message(), debug="--debug" in arguments)
        return 2
    except (KeyboardInterrupt, click.Abort):
        print("rlplug: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (BrokenPipeError, ReaderLeftError):
        raise
    except Exception as error:
        # An exception of a plugin or an environment: its own message, and the notes left on it.
        lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        message = "\n  ".join([*lines, "see where: --debug shows the traceback"])
        _complain(error, message, debug="--debug" in arguments)
        return FAILED
    return result if isinstance(result, int) else 0


def _complain(error: BaseException, message: str, *, debug: bool) -> None:
    # With nobody left to tell, the exit code still says it.
    try:
        if debug:
            traceback.print_exception(error)
        print(f"rlplug: error: {message}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _silence(sys.stderr)
