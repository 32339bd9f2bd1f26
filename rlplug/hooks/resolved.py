"""Hook implementations of one run, checked once and then called without pluggy in between."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import attrs
import pluggy

from rlplug.errors import PluginError
from rlplug.hooks.complaints import HOOKS, complaints_of
from rlplug.hooks.events import RunHooks
from rlplug.hooks.markers import PROJECT
from rlplug.hooks.specs import LearnerHooks
from rlplug.registry import FoundPlugin

__all__ = ["HOOKS", "Implementation", "Participant", "resolve"]


@attrs.frozen(eq=False)
class Participant:
    """A plugin that takes part in a run, with its own options."""

    found: FoundPlugin
    plugin: Any
    config: Any = None

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def label(self) -> str:
        return self.found.label


class Implementation:
    """One plugin's function for one hook, called with the arguments it asks for."""

    __slots__ = ("_pick", "arguments", "function", "hook", "name", "participant", "wrapper")

    def __init__(
        self, participant: Participant, hook: str, function: Callable[..., Any], wrapper: bool
    ) -> None:
        self.participant = participant
        self.name = participant.name
        self.hook = hook
        self.function = function
        self.wrapper = wrapper
        self.arguments = tuple(inspect.signature(function).parameters)
        self._pick = _picker([HOOKS[hook].index(argument) for argument in self.arguments])

    def __call__(self, *offered: Any) -> Any:
        """Call with every argument the hook offers, in the order of the contract."""
        try:
            return self.function(*self._pick(offered))
        except BaseException as error:
            self.blame(error)
            raise

    def blame(self, error: BaseException) -> None:
        """Note on an exception which hook of which plugin it came from."""
        note = f"raised in hook {self.hook!r} of {self.participant.label}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def resolve(participants: Sequence[Participant]) -> dict[str, tuple[Implementation, ...]]:
    """The implementations of every hook, in call order; every mistake is raised at once."""
    complaints = [line for one in participants for line in complaints_of(one.found, one.plugin)]
    if complaints:
        raise PluginError("\n".join(complaints))
    manager = _Manager(PROJECT)
    manager.add_hookspecs(LearnerHooks)
    manager.add_hookspecs(RunHooks)
    # pluggy calls the last registered first: reversed, so that config order is call order.
    for index in reversed(range(len(participants))):
        manager.register(participants[index].plugin, name=str(index))
    return {hook: _of(manager, hook, participants) for hook in HOOKS}


class _Manager(pluggy.PluginManager):
    """Takes a method that bears a hook's name for an implementation, marked or not."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        marked = super().parse_hookimpl_opts(plugin, name)
        if marked is not None or name not in HOOKS:
            return marked
        return {} if callable(getattr(type(plugin), name, None)) else None


def _of(
    manager: pluggy.PluginManager, hook: str, participants: Sequence[Participant]
) -> tuple[Implementation, ...]:
    # get_hookimpls lists the first to be called last.
    impls = reversed(getattr(manager.hook, hook).get_hookimpls())
    return tuple(
        Implementation(participants[int(impl.plugin_name)], hook, impl.function, bool(impl.wrapper))
        for impl in impls
    )


def _picker(indices: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    if not indices:
        return lambda offered: ()
    if len(indices) == 1:
        (index,) = indices
        return lambda offered: (offered[index],)
    return itemgetter(*indices)
