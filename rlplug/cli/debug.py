"""`--debug`, which every command takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["debug_option"]

Command = TypeVar("Command", bound=Callable[..., Any])


def debug_option(command: Command) -> Command:
    """Add `--debug`; `main` reads it from the arguments, for it also covers errors in them."""
    return click.option(
        "--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."
    )(command)
