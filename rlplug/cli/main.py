"""`rlplug`: the command group, and how errors become messages and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO

import click
from click.shell_completion import shell_complete

from rlplug.cli.command import Group
from rlplug.cli.process import forget_garbage, leave_at_once
from rlplug.errors import RlplugError

__all__ = ["cli", "leave", "main"]

COMMANDS = (
    *("run", "resume", "tune", "ablate", "eval", "ope", "runs", "show", "compare"),
    *("promote", "serve", "export", "ui", "plugins", "completion"),
)
"""Each is in a file of its name, which is imported when the command is used."""

SIGNALLED = 128
"""Exit codes above are of signals."""
COMPLETION = "_RLPLUG_COMPLETE"
"""The environment variable with which a shell asks for words."""


@click.group(
    cls=Group,
    files=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="rlplug", message="rlplug %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Reinforcement learning and bandits; every algorithm is a plugin.

    \b
    rlplug plugins list           list the installed algorithms
    rlplug run --algo NAME        train, and record the run in MLflow
    rlplug ui                     look at runs in MLflow
    rlplug show last              show the newest run and its best checkpoint
    rlplug eval last              evaluate its policy on fresh episodes
    rlplug resume last            go on with a run that was interrupted or killed
    rlplug compare RUN RUN        compare runs, or groups of seeds
    rlplug tune --algo NAME       search for better options
    rlplug COMMAND -h             the usual options of a command, with examples
    rlplug --help-all             all commands
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code: 0, 1, 2, or 128 and the number of a signal."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETION in os.environ:
        sys.exit(shell_complete(cli, {}, "rlplug", COMPLETION, os.environ[COMPLETION]))

    def command() -> Any:
        with cli.make_context("rlplug", args) as context:
            return cli.invoke(context)

    leave(command, debug="--debug" in args, ends_process=arguments is None)


def leave(command: Callable[[], Any], *, debug: bool, ends_process: bool = True) -> NoReturn:
    """Run a command and exit with its code; errors become messages."""
    if ends_process:
        gc.disable()
        # `python -m rlplug` finds modules of the working folder, and so does `rlplug`.
        sys.path += [folder for folder in [os.getcwd()] if not {folder, ""} & {*sys.path}]
    try:
        code = _code_of(command, debug=debug)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has exited (`| head`): nothing has failed.
        _silence(sys.stdout)
        code = 0
    if ends_process:
        # Ctrl-C may end it now, too, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if code > SIGNALLED:
            atexit._run_exitfuncs()
            leave_at_once(code)
        forget_garbage()
    sys.exit(code)


def _silence(stream: TextIO) -> None:
    """Discard what is still buffered, or Python would print an error on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _code_of(command: Callable[[], Any], *, debug: bool) -> int:
    try:
        result = command()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, click.Abort) as error:
        # One that was raised for a signal knows which.
        code: int = getattr(error, "exit_code", SIGNALLED + signal.SIGINT)
        with contextlib.suppress(OSError):
            print("rlplug: interrupted", file=sys.stderr, flush=True)
        return code
    except Exception as error:
        return _told(error, debug=debug)


def _told(error: Exception, *, debug: bool) -> int:
    """Print an error; returns the exit code."""
    from rlplug.config.secrets import without_secrets

    message, code = str(error), 2
    if isinstance(error, click.ClickException):
        message = error.format_message()
        if isinstance(error, click.UsageError) and error.ctx is not None:
            message += f"\n  see: {error.ctx.command_path} -h"
    elif isinstance(error, RlplugError):
        code = error.exit_code
    else:
        # An exception of a plugin or an environment.
        message, code = f"{type(error).__name__}: {error}", 1
        error.add_note("see where: --debug shows the traceback")
    message = "\n  ".join([message, *getattr(error, "__notes__", ())])
    trace = "".join(traceback.format_exception(error)) if debug else ""
    # Without a reader, the exit code still tells.
    try:
        text = without_secrets(f"{trace}rlplug: error: {message}")
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _silence(sys.stderr)
    return code
