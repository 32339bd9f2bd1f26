"""Results of checks: what was looked for, what was found, and where to look."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import attrs

_OF_THE_CORE = ("rlplug.plugin", "torch.nn.modules.module", "builtins")


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
    tier: str
    description: str
    status: Literal["passed", "failed", "does not apply"]
    text: str = ""
    """The report of a failure, or why the check does not apply."""
    seconds: float


def location(kind: type[Any], *names: str, module: type[Any] | None = None) -> str:
    """Those of these methods that a plugin or its module defines: `Mine.build (mine.py:88)`.

    What was learned may come from any of them.
    """
    places = []
    for owner in (kind, *([module] if module else [])):
        bases = [base for base in owner.__mro__ if base.__module__ not in _OF_THE_CORE]
        own = [name for name in names if any(name in vars(base) for base in bases)]
        places += [f"{owner.__name__}.{name}{_source(getattr(owner, name))}" for name in own]
    return " or ".join(places) or f"{kind.__name__}{_source(kind)}"


def as_failure(error: Exception, description: str, kind: type[Any]) -> CheckFailed:
    """The failure of a check in which a plugin raised an exception."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    found = f"{type(error).__name__}: {error}{notes}"
    frames: list[traceback.FrameSummary] = []
    cause: BaseException | None = error
    while cause is not None:
        frames += traceback.extract_tb(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    # Where it was raised in the core or in a library, the notes name the hook.
    hooks = re.findall(r"hook '(\w+)'", f"{notes} {error}")
    return CheckFailed(description, found, own_line(frames, kind, *hooks))


def own_line(frames: Iterable[traceback.FrameSummary], kind: type[Any], *hooks: str) -> str:
    """The innermost line of the plugin's own package in a stack; without any, those hooks."""
    home = _home(kind)
    own = [frame for frame in frames if home in (path := Path(frame.filename), *path.parents)]
    return f"{_relative(own[-1].filename)}:{own[-1].lineno}" if own else location(kind, *hooks)


def _home(kind: type[Any]) -> Path:
    """The folder of the package that defines a class; of a module without a package, its file."""
    name = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        # From a folder that is no package, or from a cell of a notebook.
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or "/nowhere"
    path = Path(file)
    return path.parent if path.name == "__init__.py" else path


def _source(thing: Any) -> str:
    try:
        # A decorator such as torch.no_grad() is not what the author wrote.
        thing = inspect.unwrap(thing)
        file, (_, line) = inspect.getsourcefile(thing), inspect.getsourcelines(thing)
    except (OSError, TypeError):
        return ""
    return "" if file is None else f" ({_relative(file)}:{line})"


def _relative(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
