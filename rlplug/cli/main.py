"""`rlplug`: the command group, and how errors become messages and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

import click

from rlplug.cli.ablate import ablate
from rlplug.cli.best import best
from rlplug.cli.command import Group
from rlplug.cli.compare import compare
from rlplug.cli.completion import completion
from rlplug.cli.diff import diff
from rlplug.cli.doctor import doctor
from rlplug.cli.eval import evaluate
from rlplug.cli.export import export
from rlplug.cli.ope import ope
from rlplug.cli.options import options
from rlplug.cli.parameters import debug_option
from rlplug.cli.plugins import plugins
from rlplug.cli.process import forget_garbage, leave_at_once
from rlplug.cli.promote import promote
from rlplug.cli.resume import resume
from rlplug.cli.run import run
from rlplug.cli.runs import runs
from rlplug.cli.serve import serve
from rlplug.cli.show import show
from rlplug.cli.tune import tune
from rlplug.cli.ui import ui
from rlplug.cli.version import version
from rlplug.errors import RlplugError

__all__ = ["cli", "leave", "main"]

FAILED = 1
SIGNALLED = 128
"""Exit codes above are of signals."""
INTERRUPTED = SIGNALLED + signal.SIGINT


class ReaderLeftError(Exception):
    """The reader of standard output is gone; click would exit with 1 on the broken pipe."""


class _Program(Group):
    def make_context(self, *args: Any, **given: Any) -> click.Context:
        # Here `--help` and `--version` print.
        with _reader_may_leave():
            return super().make_context(*args, **given)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_may_leave():
            return super().invoke(ctx)


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderLeftError from error


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rlplug", message="rlplug %(version)s")
@debug_option
def cli() -> None:
    """Reinforcement learning and bandits; every algorithm is a plugin.

    \b
    rlplug plugins list              list installed algorithms
    rlplug run --algo linucb         train, and record the run in MLflow
    rlplug resume last               go on with a run that was interrupted or killed
    rlplug tune --config FILE        search for the options of a run
    rlplug eval last                 evaluate a trained policy
    rlplug ope last --data FILE      estimate its value from a log of another policy
    rlplug ui                        look at runs in MLflow
    rlplug runs                      list runs, and how they ended
    rlplug compare RUN RUN           compare runs, or groups of runs
    rlplug show last                 show one run: results, options, plugins, checkpoints
    rlplug best last                 show the best checkpoint and its model
    rlplug promote last NAME         register it in MLflow's model registry
    rlplug serve last                answer requests for actions over HTTP
    """


cli.add_command(run)
cli.add_command(resume)
cli.add_command(tune)
cli.add_command(ablate)
cli.add_command(evaluate)
cli.add_command(ope)
cli.add_command(ui)
cli.add_command(runs)
cli.add_command(show)
cli.add_command(best)
cli.add_command(promote)
cli.add_command(compare)
cli.add_command(diff)
cli.add_command(serve)
cli.add_command(export)
cli.add_command(options)
cli.add_command(plugins)
cli.add_command(version)
cli.add_command(doctor)
cli.add_command(completion)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code: 0, 1, 2, or 128 and the number of a signal."""
    args = list(sys.argv[1:] if arguments is None else arguments)

    def command() -> Any:
        return cli.main(args=args, prog_name="rlplug", standalone_mode=False)

    leave(command, debug="--debug" in args, ends_process=arguments is None)


def leave(command: Callable[[], Any], *, debug: bool, ends_process: bool = True) -> NoReturn:
    """Run a command and exit with its code; errors become messages."""
    try:
        code = _code_of(command, debug=debug)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (BrokenPipeError, ReaderLeftError):
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
    except RlplugError as error:
        message = "\n  ".join([str(error), *getattr(error, "__notes__", ())])
        _print_error(error, message, debug=debug)
        return error.exit_code
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            # A group without a command prints its help.
            print(error.format_message(), file=sys.stderr)
            return 2
        path = error.ctx.command_path if error.ctx is not None else "rlplug"
        _print_error(error, f"{error.format_message()}\n  see: {path} --help", debug=debug)
        return 2
    except click.ClickException as error:
        _print_error(error, error.format_message(), debug=debug)
        return 2
    except (KeyboardInterrupt, click.Abort) as error:
        # One that was raised for a signal knows which; click raises Abort from it.
        code: int = getattr(error.__cause__ or error, "exit_code", INTERRUPTED)
        with contextlib.suppress(OSError):
            print("rlplug: interrupted", file=sys.stderr, flush=True)
        return code
    except (BrokenPipeError, ReaderLeftError):
        raise
    except Exception as error:
        # An exception of a plugin or an environment: its message and its notes.
        lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        message = "\n  ".join([*lines, "see where: --debug shows the traceback"])
        _print_error(error, message, debug=debug)
        return FAILED
    return result if isinstance(result, int) else 0


def _print_error(error: BaseException, message: str, *, debug: bool) -> None:
    from rlplug.config.secrets import without_secrets

    # Without a reader, the exit code still tells.
    try:
        if debug:
            shown = without_secrets("".join(traceback.format_exception(error)))
            print(shown, end="", file=sys.stderr)
        print(f"rlplug: error: {without_secrets(message)}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _silence(sys.stderr)
