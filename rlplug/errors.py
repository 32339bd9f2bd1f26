"""The exceptions of rlplug."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

FAILURES = (Exception, SystemExit)
"""What calls of third-party code may raise; sys.exit() counts as a failure too."""


_LONGEST = 2_000
"""Characters of one line of a message."""


class RlplugError(Exception):
    """Base class of rlplug's errors; the command line prints them without a traceback.

    The first line names who failed and what was found; each hint says one thing to do.
    """

    exit_code = 1

    def __init__(self, message: str, *hints: str) -> None:
        # What is quoted may be as long as a file.
        cut = [f"{one[:_LONGEST]} …" if len(one) > _LONGEST else one for one in (message, *hints)]
        self.message, *others = cut
        self.hints = tuple(others)
        super().__init__("\n".join([self.message, *(f"  {hint}" for hint in self.hints)]))

    def add_hint(self, hint: str) -> None:
        """Add a last line to the message."""
        self.hints = (*self.hints, hint)
        self.args = (f"{self}\n  {hint}",)


class RequestError(RlplugError):
    """A request that cannot be carried out; raised before the first environment step."""

    exit_code = 2


class PluginError(RequestError):
    """A plugin cannot be used."""


class PluginWarning(FutureWarning):
    """A plugin uses what the next minor version does not have; Python shows it once per place."""


class UnsupportedSpaceError(RequestError):
    """An algorithm, network or feed does not support a space."""


class Problem(NamedTuple):
    """One wrong option: its path and what is wrong with it."""

    path: str
    message: str


class ConfigError(RequestError):
    """All wrong options of a config."""

    def __init__(self, where: str, problems: Sequence[Problem], *hints: str) -> None:
        self.problems = tuple(problems)
        width = max((len(problem.path) for problem in problems), default=0)
        lines = [f"{problem.path:<{width}}   {problem.message}" for problem in problems]
        plural = "" if len(problems) == 1 else "s"
        super().__init__(f"{len(problems)} problem{plural} in {where}:", *lines, *hints)


class RunFailedError(RlplugError):
    """A run failed after it started; what was logged and saved is kept."""


class EnvironmentFailedError(RunFailedError):
    """An environment raised an error, died, or returned invalid values."""


def described(error: BaseException) -> str:
    """The message of an error; of other code, with its kind."""
    return str(error) if isinstance(error, RlplugError) else f"{type(error).__name__}: {error}"


def closest(word: str, known: Iterable[str]) -> str:
    """The known word that is closest, or an empty string if none is similar."""
    lowered = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return lowered[near[0]] if near else ""


def did_you_mean(word: str, known: Iterable[str], *, sentence: bool = False) -> str:
    """`did you mean 'x'?` for the closest known word, or an empty string."""
    near = closest(word, known)
    return f"{'Did' if sentence else 'did'} you mean {near!r}?" if near else ""
