"""What a check says: what it looked for, what it found, and where to look."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import attrs

__all__ = ["CheckFailed", "DoesNotApply", "Outcome", "as_failure", "place"]


class CheckFailed(AssertionError):  # noqa: N818 # what authors read in reports
    """A plugin does not do what the contract says."""

    def __init__(self, looked_for: str, found: str, look_at: str) -> None:
        self.looked_for = looked_for
        self.found = found
        self.look_at = look_at
        super().__init__(f"looked for  {looked_for}\nfound       {found}\nlook at     {look_at}")


class DoesNotApply(Exception):  # noqa: N818 # no error
    """A check that has nothing to look at in this plugin, and why."""


@attrs.frozen(kw_only=True)
class Outcome:
    """What one check came to."""

    check: str
    description: str
    status: Literal["passed", "failed", "does not apply"]
    text: str = ""
    """The report of a failure, or why there was nothing to check."""
    seconds: float = 0.0


def place(kind: type[Any], *names: str) -> str:
    """`Mine.compute_loss_for_module (mine/algorithm.py:88)`, of the first method that is there."""
    for name in names:
        method = getattr(kind, name, None)
        if method is not None and name in _own_names(kind):
            return f"{kind.__name__}.{name}{_where(method)}"
    return f"{kind.__name__}{_where(kind)}"


def as_failure(error: Exception, description: str, kind: type[Any]) -> CheckFailed:
    """An exception that came out of a plugin, as the failure of the check that met it."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    found = f"{type(error).__name__}: {error}{notes}"
    return CheckFailed(description, found, _innermost(error, kind))


def _own_names(kind: type[Any]) -> set[str]:
    """Names that a plugin or module defines, apart from those of the core's base classes."""
    return {
        name
        for base in kind.__mro__
        if base.__module__ not in ("rlplug.plugin", "torch.nn.modules.module", "builtins")
        for name in vars(base)
    }


def _where(thing: Callable[..., Any]) -> str:
    try:
        file = inspect.getsourcefile(thing)
        _, line = inspect.getsourcelines(thing)
    except (OSError, TypeError):
        return ""
    return "" if file is None else f" ({_short(file)}:{line})"


def _innermost(error: Exception, kind: type[Any]) -> str:
    """The last line of the plugin's own package that an exception passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    try:
        home = Path(inspect.getfile(kind)).parent
    except (OSError, TypeError):
        home = Path("/")
    own = [frame for frame in frames if Path(frame.filename).parent == home]
    passed = own or list(frames)
    if not passed:
        return place(kind)
    return f"{_short(passed[-1].filename)}:{passed[-1].lineno}"


def _short(file: str) -> str:
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
