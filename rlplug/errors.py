"""What rlplug raises when a request is wrong or a run fails."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "FAILURES",
    "ConfigError",
    "EnvironmentFailedError",
    "PluginError",
    "Problem",
    "RequestError",
    "RlplugError",
    "RunFailedError",
    "UnsupportedSpaceError",
    "did_you_mean",
]


FAILURES = (Exception, SystemExit)
"""What code of others may raise; that it wants to end the process is a failure as well."""


class RlplugError(Exception):
    """The base of all errors of rlplug; the command line prints it without a traceback.

    The first line says who and what was found; each line of `hints` says one thing to do.
    """

    exit_code = 1

    def __init__(self, message: str, *hints: str) -> None:
        self.message = message
        self.hints = hints
        super().__init__("\n".join([message, *(f"  {hint}" for hint in hints)]))


class RequestError(RlplugError):
    """What was asked for cannot be done: found before the first environment step."""

    exit_code = 2


class PluginError(RequestError):
    """A plugin that was named cannot be used."""


class UnsupportedSpaceError(RequestError):
    """An algorithm, network or feed cannot handle this space."""


class Problem(tuple[str, str]):
    """One wrong option: its path and what is wrong with it."""

    __slots__ = ()

    def __new__(cls, path: str, message: str) -> Problem:
        return super().__new__(cls, (path, message))

    @property
    def path(self) -> str:
        return self[0]

    @property
    def message(self) -> str:
        return self[1]


class ConfigError(RequestError):
    """Options that are wrong, all of them at once."""

    def __init__(self, where: str, problems: Sequence[Problem], *hints: str) -> None:
        self.problems = tuple(problems)
        width = max((len(problem.path) for problem in problems), default=0)
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        lines = [f"{problem.path:<{width}}   {problem.message}" for problem in problems]
        super().__init__(f"{count} in {where}:", *lines, *hints)


class RunFailedError(RlplugError):
    """A run started and could not go on; what it had logged and saved stays."""


class EnvironmentFailedError(RunFailedError):
    """An environment raised, died or returned something no algorithm can use."""


def did_you_mean(word: str, known: Iterable[str], *, sentence: bool = False) -> str:
    """`did you mean 'x'?` for the known word nearest to this one, or an empty string."""
    lowered = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return f"{'Did' if sentence else 'did'} you mean {lowered[near[0]]!r}?" if near else ""
