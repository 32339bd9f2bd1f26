"""`build` inside its wrappers: generators that yield once and return the module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rlplug.errors import PluginError
from rlplug.hooks.resolved import Implementation

if TYPE_CHECKING:
    from rlplug.plugin import Module

__all__ = ["checked", "nested"]


def nested(
    wrappers: Sequence[Implementation],
    answer: Implementation,
    offered: Callable[[Implementation], tuple[Any, ...]],
    draws: Callable[[Implementation], AbstractContextManager[None]],
) -> Any:
    """Run the answer inside its wrappers: generators that yield once and return the result."""
    if not wrappers:
        with draws(answer):
            return answer(*offered(answer))
    outer, *inner = wrappers
    generator = outer(*offered(outer))
    with draws(outer):
        _advance(outer, lambda: next(generator), finished=False)
    try:
        result = nested(inner, answer, offered, draws)
    except BaseException as error:
        raised = error
        with draws(outer):
            return _advance(outer, lambda: generator.throw(raised), finished=True)
    with draws(outer):
        return _advance(outer, lambda: generator.send(result), finished=True)


def _advance(one: Implementation, step: Callable[[], Any], *, finished: bool) -> Any:
    try:
        step()
    except StopIteration as stop:
        if finished:
            return stop.value
    except BaseException as error:
        one.blame(error)
        raise
    else:
        if not finished:
            return None
    raise PluginError(
        f"{one.participant.label}: its wrapper of {one.hook!r} must yield exactly once.",
        "try: module = yield; return module",
    )


def checked(module: Any, answer: Implementation) -> Module:
    from rlplug.plugin import Module

    if isinstance(module, Module):
        return module
    raise PluginError(
        f"{answer.participant.label}: 'build' gave {type(module).__name__}, "
        "which is not an rlplug.Module.",
        "try: return a subclass of rlplug.Module (a wrapper returns what it was given)",
    )
