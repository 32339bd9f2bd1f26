"""Parameters that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = [
    "checkpoint_option",
    "debug_option",
    "host_option",
    "is_loopback",
    "seed_option",
    "trust_option",
]

Command = TypeVar("Command", bound=Callable[..., Any])


def debug_option(command: Command) -> Command:
    """Add `--debug`; `main` reads it from the raw arguments, as parsing them can fail."""
    return click.option(
        "--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."
    )(command)


def checkpoint_option(command: Command) -> Command:
    """Add `--checkpoint`."""
    return click.option(
        "--checkpoint",
        default="best",
        show_default=True,
        metavar="best|last|STEP|PATH",
        help="Checkpoint of the best evaluation, the last one, that of a step, or a folder.",
    )(command)


def seed_option(text: str) -> Callable[[Command], Command]:
    """Add `--seed`, by default 0."""
    return click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help=text,
    )


def trust_option(command: Command) -> Command:
    """Add `--trust`."""
    return click.option(
        "--trust",
        is_flag=True,
        help="Import the code that the config of somebody else's run names: encoders, wrappers, "
        "packages of environments.",
    )(command)


def host_option(command: Command) -> Command:
    """Add `--host`, by default this machine alone."""
    return click.option(
        "--host", default="127.0.0.1", show_default=True, help="Address to listen on."
    )(command)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return host in ("127.0.0.1", "localhost", "::1")
