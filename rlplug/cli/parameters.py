"""Parameters that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["debug_option", "host_option", "is_loopback"]

Command = TypeVar("Command", bound=Callable[..., Any])


def debug_option(command: Command) -> Command:
    """Add `--debug`; `main` reads it from the raw arguments, as parsing them can fail."""
    return click.option(
        "--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."
    )(command)


def host_option(command: Command) -> Command:
    """Add `--host`, by default this machine alone."""
    return click.option(
        "--host", default="127.0.0.1", show_default=True, help="Address to listen on."
    )(command)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return host in ("127.0.0.1", "localhost", "::1")
