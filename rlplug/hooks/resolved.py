"""Hook implementations of one run, checked once and then called without pluggy in between."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import attrs
import pluggy

from rlplug.errors import PluginError, did_you_mean
from rlplug.hooks.events import RunHooks
from rlplug.hooks.markers import PROJECT
from rlplug.hooks.specs import LearnerHooks
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin

__all__ = ["HOOKS", "Implementation", "Participant", "resolve"]

_MARK = f"{PROJECT}_impl"

HOOKS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(function).parameters)[1:]
    for specs in (LearnerHooks, RunHooks)
    for name, function in vars(specs).items()
    if not name.startswith("_")
}
"""Every hook with the arguments it offers, in the order of the contract."""


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
    complaints = [line for one in participants for line in _complaints(one)]
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


def _complaints(one: Participant) -> Iterable[str]:
    """What is wrong with a plugin's hooks, before pluggy sees them."""
    kind = type(one.plugin)
    implemented = set()
    for name, function in _methods(kind):
        options = getattr(function, _MARK, None)
        hook = (options or {}).get("specname") or name
        if hook in HOOKS:
            implemented.add(hook)
            yield from _shape(one, kind, name, hook, function, options or {})
        elif options is not None and not options.get("optionalhook"):
            yield _unknown(one, hook)
        elif options is None and (guess := _looks_like(name, kind)):
            yield (
                f"{one.label}: {kind.__name__}.{name} is no hook, but looks like {guess!r}.\n"
                f"  Rename it to {guess!r}, or start its name with an underscore."
            )
    if one.found.kind == ALGORITHM and "build" not in implemented:
        yield f"{one.label} has no 'build'.\n  Define {kind.__name__}.build: it makes the module."


def _methods(kind: type[Any]) -> Iterable[tuple[str, Any]]:
    for name in dir(kind):
        if name.startswith("_"):
            continue
        static = inspect.getattr_static(kind, name)
        function = getattr(static, "__func__", static)
        if inspect.isfunction(function) or name in HOOKS:
            yield name, function


def _shape(
    one: Participant, kind: type[Any], name: str, hook: str, function: Any, options: dict[str, Any]
) -> Iterable[str]:
    where = f"{one.label}: {kind.__name__}.{name}"
    if not inspect.isfunction(function):
        yield f"{where} has the name of a hook but is no method.\n  Make it a method, or rename it."
        return
    if options.get("hookwrapper"):
        yield f"{where} is an old-style wrapper.\n  Use @rlplug.hookimpl(wrapper=True)."
    if options.get("tryfirst") or options.get("trylast"):
        yield (
            f"{where} asks for tryfirst or trylast.\n"
            "  Hooks run in the order of the config: remove it, and list the add-ons in order."
        )
    if options.get("wrapper") and hook != "build":
        yield (
            f"{where} wraps a hook that cannot be wrapped.\n"
            "  Only 'build' can; remove wrapper=True."
        )
    if one.found.kind == ADDON and hook == "build" and not options.get("wrapper"):
        yield (
            f"{one.label} would replace the algorithm's 'build'.\n"
            "  An add-on may only wrap this hook: use @rlplug.hookimpl(wrapper=True)."
        )
    if one.found.kind == ALGORITHM and hook == "build" and options.get("wrapper"):
        yield f"{where} wraps 'build', which an algorithm answers.\n  Remove wrapper=True."
    yield from _parameters(where, hook, function)


def _parameters(where: str, hook: str, function: Any) -> Iterable[str]:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    offered = HOOKS[hook]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind == parameter.VAR_POSITIONAL else "**"
            yield (
                f"{where} takes {stars}{parameter.name}.\n"
                f"  Name the arguments it wants, of: {', '.join(offered) or 'none'}."
            )
        elif parameter.name not in offered:
            guess = did_you_mean(parameter.name, offered, sentence=True)
            yield (
                f"{where} has a parameter {parameter.name!r} that hook {hook!r} does not offer."
                f" {guess}".rstrip()
                + f"\n  It offers: {', '.join(offered) or 'nothing'}."
            )
        elif parameter.kind == parameter.KEYWORD_ONLY:
            yield (
                f"{where}: parameter {parameter.name!r} is keyword-only.\n  Move it before the '*'."
            )
        elif parameter.default is not parameter.empty:
            yield (
                f"{where}: parameter {parameter.name!r} has a default.\n"
                "  Remove it: the core always passes a value."
            )


def _unknown(one: Participant, hook: str) -> str:
    guess = did_you_mean(hook, HOOKS, sentence=True)
    advice = guess or "See: rlplug plugins hooks"
    return f"{one.label} implements an unknown hook {hook!r}.\n  {advice}"


def _looks_like(name: str, kind: type[Any]) -> str:
    import difflib

    from rlplug.plugin import AddOn, Algorithm

    if hasattr(Algorithm, name) or hasattr(AddOn, name):
        return ""
    near = difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.88)
    return near[0] if near else ""
