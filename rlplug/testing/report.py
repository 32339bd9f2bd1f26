"""Results of checks: what was looked for, what was found, and where to look."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

__all__ = [
    "CheckFailed",
    "DoesNotApply",
    "Outcome",
    "as_failure",
    "location",
    "locations",
    "own_line",
]


class CheckFailed(AssertionError):  # noqa: N818 # what authors read in reports
    """A plugin does not do what the contract says."""

    def __init__(self, looked_for: str, found: str, look_at: str) -> None:
        self.looked_for = looked_for
        self.found = found
        self.look_at = look_at
        super().__init__(f"looked for  {looked_for}\nfound       {found}\nlook at     {look_at}")


class DoesNotApply(Exception):  # noqa: N818 # no error
    """A check does not apply to this plugin, for this reason."""


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of one check."""

    check: str
    description: str
    status: Literal["passed", "failed", "does not apply"]
    text: str = ""
    """The report of a failure, or why the check does not apply."""
    seconds: float


def location(kind: type[Any], *names: str) -> str:
    """The first of these methods that exists: `Mine.build (mine/algorithm.py:88)`."""
    for name in names:
        method = getattr(kind, name, None)
        if method is not None and name in _own_names(kind):
            return f"{kind.__name__}.{name}{_source(method)}"
    return f"{kind.__name__}{_source(kind)}"


def locations(kind: type[Any], *names: str) -> str:
    """All of these methods that the plugin defines: what was learned may come from any of them."""
    own = [name for name in names if name in _own_names(kind)]
    return " or ".join(location(kind, name) for name in own) or location(kind)


def as_failure(error: Exception, description: str, kind: type[Any]) -> CheckFailed:
    """The failure of a check in which a plugin raised an exception."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    found = f"{type(error).__name__}: {error}{notes}"
    return CheckFailed(description, found, _innermost_line(error, kind))


def _own_names(kind: type[Any]) -> set[str]:
    """Names that a plugin or module defines itself, not through base classes of the core."""
    return {
        name
        for base in kind.__mro__
        if base.__module__ not in ("rlplug.plugin", "torch.nn.modules.module", "builtins")
        for name in vars(base)
    }


def _source(thing: Callable[..., Any]) -> str:
    try:
        file = inspect.getsourcefile(thing)
        _, line = inspect.getsourcelines(thing)
    except (OSError, TypeError):
        return ""
    return "" if file is None else f" ({_relative(file)}:{line})"


def _innermost_line(error: Exception, kind: type[Any]) -> str:
    """The innermost line of the plugin's own package in the traceback."""
    frames = [frame for one in _chain(error) for frame in traceback.extract_tb(one.__traceback__)]
    try:
        home = Path(inspect.getfile(kind)).parent
    except (OSError, TypeError):
        home = Path("/")
    own = [frame for frame in frames if home in Path(frame.filename).parents]
    if own:
        return f"{_relative(own[-1].filename)}:{own[-1].lineno}"
    # Raised in the core or in a library, for what a hook returned or was given.
    notes = " ".join(getattr(error, "__notes__", ()))
    return location(kind, *re.findall(r"hook '(\w+)'", f"{notes} {error}"))


def own_line(stacks: Sequence[traceback.StackSummary], kind: type[Any]) -> str:
    """The innermost line of the plugin's own package in a stack."""
    try:
        home = Path(inspect.getfile(kind)).parent
    except (OSError, TypeError):
        return location(kind)
    for frame in [frame for stack in stacks for frame in stack][::-1]:
        if home in Path(frame.filename).parents:
            return f"{_relative(frame.filename)}:{frame.lineno}"
    return location(kind, "build")


def _chain(error: BaseException) -> list[BaseException]:
    """An error and those that it was raised from, the first one last."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    return chain


def _relative(file: str) -> str:
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
