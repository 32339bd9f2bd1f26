"""Bind plugins to hooks: check their implementations, and register them with pluggy."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pluggy

from rlplug.errors import PluginError, did_you_mean
from rlplug.hooks import PROJECT
from rlplug.hooks.events import RunHooks
from rlplug.hooks.specs import LearnerHooks
from rlplug.hooks.tracing import HookTrace
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Participant

__all__ = ["HOOKS", "Implementation", "bind", "deprecations"]

HOOKS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(function).parameters)[1:]
    for specs in (LearnerHooks, RunHooks)
    for name, function in vars(specs).items()
    if not name.startswith("_")
}
"""Hook → the arguments that it offers, in the order of its specification."""

_OWN = ("extra", "config")
"""Arguments of which each plugin gets its own."""
_OTHER_NAMES = {
    "configure_optimizers": "configure_optimizers_for_module",
    "compute_loss": "compute_loss_for_module",
    "training_step": "compute_loss_for_module",
}
"""Names that Lightning and RLlib use for what a hook does here."""


class Implementation:
    """One plugin's function for one hook, called with the arguments that it names."""

    __slots__ = ("arguments", "called", "hook", "name", "participant", "plain")

    def __init__(self, participant: Participant, hook: str, function: Callable[..., Any]) -> None:
        self.participant = participant
        self.name = participant.name
        self.hook = hook
        self.arguments = tuple(inspect.signature(function).parameters)
        offered = [name for name in HOOKS[hook] if name not in _OWN]
        taken = (n if n in _OWN else f"offered[{offered.index(n)}]" for n in self.arguments)
        # Written out, as hooks are called for each minibatch: nothing is packed and picked then.
        text = f"lambda function: lambda offered, extra, config: function({', '.join(taken)})"
        self.plain: Callable[..., Any] = eval(text)(function)
        self.called = self.plain
        """The same, perhaps timed."""

    def __call__(self, offered: tuple[Any, ...], extra: Any = None, config: Any = None) -> Any:
        """Call with what the hook offers to all, in its order, and what is the plugin's own."""
        try:
            return self.called(offered, extra, config)
        except BaseException as error:
            self.add_note(error)
            raise

    def trace(self, trace: HookTrace) -> None:
        """Let a trace time its calls."""
        self.called = trace.traced(self.name, self.hook, self.called)

    def add_note(self, error: BaseException) -> None:
        """Note on an exception which hook of which plugin raised it."""
        note = f"raised in hook {self.hook!r} of {self.participant.label}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def bind(participants: Sequence[Participant]) -> dict[str, tuple[Implementation, ...]]:
    """Hook → its implementations, in call order; all mistakes are raised at once."""
    problems = [problem for one in participants for problem in _problems(one.found, one.plugin)]
    if problems:
        raise PluginError("\n".join(problems))
    manager = _PluginManager(PROJECT)
    manager.add_hookspecs(LearnerHooks)
    manager.add_hookspecs(RunHooks)
    # pluggy calls the last registered first: reversed, so that config order is call order.
    for index in reversed(range(len(participants))):
        manager.register(participants[index].plugin, name=str(index))
    return {
        hook: tuple(
            Implementation(participants[int(bound.plugin_name)], hook, bound.function)
            # get_hookimpls lists the first to be called last.
            for bound in reversed(getattr(manager.hook, hook).get_hookimpls())
        )
        for hook in HOOKS
    }


def deprecations(participant: Participant) -> list[str]:
    """What a plugin implements that the next minor version does not offer."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        bind([participant])
    return [str(warning.message) for warning in told]


class _PluginManager(pluggy.PluginManager):
    """Takes a method named after a hook as its implementation, with or without `hookimpl`."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        marked = super().parse_hookimpl_opts(plugin, name)
        if marked is not None or name not in HOOKS:
            return marked
        return {} if callable(getattr(type(plugin), name, None)) else None


def _problems(found: FoundPlugin, plugin: object) -> Iterator[str]:
    """One text per mistake in a plugin's hooks, each with how to fix it."""
    kind = type(plugin)
    methods = {name: _function(kind, name) for name in dir(kind) if not name.startswith("_")}
    implemented: set[str] = set()
    for name, function in methods.items():
        options = getattr(function, f"{PROJECT}_impl", None)
        hook = (options or {}).get("specname") or name
        where = f"{found.label}: {kind.__name__}.{name}"
        if hook in HOOKS and not inspect.isfunction(function):
            yield f"{where} has a hook's name but is not a method.\n  Make it one, or rename it."
        elif hook in HOOKS:
            implemented.add(hook)
            yield from _function_problems(where, found, hook, function, options or {})
            static = isinstance(inspect.getattr_static(kind, name), staticmethod)
            yield from _parameter_problems(where, hook, function, bound=not static)
        elif options is not None and not options.get("optionalhook"):
            guess = did_you_mean(hook, HOOKS, sentence=True) or "See: rlplug plugins hooks"
            yield f"{found.label} implements an unknown hook {hook!r}.\n  {guess}"
        elif options is None and inspect.isfunction(function):
            guess = _similar(name)
            if guess and guess not in methods:
                yield (
                    f"{where} is not a hook, but looks like {guess!r}.\n"
                    f"  Rename it to {guess!r}, or start its name with an underscore."
                )
    if found.kind == ALGORITHM and "build" not in implemented:
        yield f"{found.label} has no 'build'.\n  Define {kind.__name__}.build: it makes the module."


def _function(kind: type[Any], name: str) -> Any:
    static = inspect.getattr_static(kind, name)
    return getattr(static, "__func__", static)


def _function_problems(
    where: str, found: FoundPlugin, hook: str, function: Any, options: dict[str, Any]
) -> Iterator[str]:
    wrapper, old = bool(options.get("wrapper")), bool(options.get("hookwrapper"))
    yields, builds = inspect.isgeneratorfunction(function), hook == "build"
    if inspect.iscoroutinefunction(function):
        yield f"{where} is a coroutine, but hooks are not awaited.\n  Use def instead of async def."
    if options.get("tryfirst") or options.get("trylast"):
        yield (
            f"{where} is marked tryfirst or trylast.\n"
            "  Hooks run in the order of the config: remove it, and list the add-ons in order."
        )
    if old:
        yield f"{where} is an old-style wrapper.\n  Use @rlplug.hookimpl(wrapper=True)."
    elif yields and not wrapper:
        yield (
            f"{where} yields, which only a wrapper does.\n"
            "  Return the result, or use @rlplug.hookimpl(wrapper=True)."
        )
    if wrapper and not yields:
        yield (
            f"{where} is marked as a wrapper, but does not yield.\n"
            "  Yield once: module = yield; return module."
        )
    if wrapper and not builds:
        yield f"{where} wraps {hook!r}.\n  Only 'build' can be wrapped: remove wrapper=True."
    elif wrapper and found.kind == ALGORITHM:
        yield f"{where} wraps 'build', which an algorithm must implement.\n  Remove wrapper=True."
    elif builds and not wrapper and found.kind == ADDON:
        yield (
            f"{where} would replace the algorithm's 'build'.\n"
            "  An add-on may only wrap this hook: use @rlplug.hookimpl(wrapper=True)."
        )


def _parameter_problems(where: str, hook: str, function: Any, *, bound: bool) -> Iterator[str]:
    parameters = list(inspect.signature(function).parameters.values())
    names = ", ".join(HOOKS[hook]) or "nothing"
    if bound:
        if not parameters or parameters[0].name in HOOKS[hook]:
            yield f"{where} has no 'self'.\n  Add it before the hook's arguments."
        parameters = parameters[1:]
    for parameter in parameters:
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield f"{where} takes {parameter}.\n  Name the arguments that it takes, of: {names}."
        elif name not in HOOKS[hook]:
            guess = did_you_mean(name, HOOKS[hook], sentence=True)
            problem = f"{where} has a parameter {name!r} that hook {hook!r} does not offer. {guess}"
            yield f"{problem.rstrip()}\n  It offers: {names}."
        elif parameter.kind == parameter.KEYWORD_ONLY:
            yield f"{where}: parameter {name!r} is keyword-only.\n  Move it before the '*'."
        elif parameter.default is not parameter.empty:
            yield (
                f"{where}: parameter {name!r} has a default.\n"
                "  Remove it: the core always passes a value."
            )


def _similar(name: str) -> str:
    """The hook that a method may be meant to be."""
    from rlplug.plugin import AddOn, Algorithm

    if hasattr(Algorithm, name) or hasattr(AddOn, name):
        return ""
    near = difflib.get_close_matches(name.lower(), HOOKS, n=1, cutoff=0.88)
    return near[0] if near else _OTHER_NAMES.get(name, "")
