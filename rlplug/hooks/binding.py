"""Bind plugins to hooks: check their implementations, and register them with pluggy."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pluggy

from rlplug.errors import PluginError, did_you_mean
from rlplug.hooks import PROJECT
from rlplug.hooks.events import RunHooks
from rlplug.hooks.specs import LearnerHooks
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Participant

__all__ = ["HOOKS", "bind", "check_unique_names", "deprecations"]

_MARK = f"{PROJECT}_impl"

HOOKS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(function).parameters)[1:]
    for specs in (LearnerHooks, RunHooks)
    for name, function in vars(specs).items()
    if not name.startswith("_")
}
"""Hook → the arguments that it offers, in the order of its specification."""

_OTHER_NAMES = {
    "configure_optimizers": "configure_optimizers_for_module",
    "compute_loss": "compute_loss_for_module",
    "training_step": "compute_loss_for_module",
}
"""Names that Lightning and RLlib use for what a hook does here."""


def bind(
    participants: Sequence[Participant],
) -> dict[str, list[tuple[Participant, Callable[..., Any]]]]:
    """Hook → plugins and their functions, in call order; all mistakes are raised at once."""
    problems = [line for one in participants for line in _problems(one.found, one.plugin)]
    if problems:
        raise PluginError("\n".join(problems))
    manager = _PluginManager(PROJECT)
    manager.add_hookspecs(LearnerHooks)
    manager.add_hookspecs(RunHooks)
    # pluggy calls the last registered first: reversed, so that config order is call order.
    for index in reversed(range(len(participants))):
        manager.register(participants[index].plugin, name=str(index))
    return {
        hook: [
            (participants[int(one.plugin_name)], one.function)
            # get_hookimpls lists the first to be called last.
            for one in reversed(getattr(manager.hook, hook).get_hookimpls())
        ]
        for hook in HOOKS
    }


def deprecations(kind: type[Any]) -> list[str]:
    """What a class implements that the next minor version does not offer; pluggy warns of it."""
    lines = []
    for name, function in _methods(kind):
        hook = (getattr(function, _MARK, None) or {}).get("specname") or name
        options = _spec_options(hook)
        if options.get("warn_on_impl"):
            lines.append(f"{name}: {options['warn_on_impl']}")
        dropped = options.get("warn_on_impl_args") or {}
        if inspect.isfunction(function):
            taken = inspect.signature(function).parameters
            lines += [f"{name}: {why}" for argument, why in dropped.items() if argument in taken]
    return lines


def _spec_options(hook: str) -> dict[str, Any]:
    """What `hookspec` was given; for hooks and arguments that are dropped, warnings."""
    for specs in (LearnerHooks, RunHooks):
        if function := getattr(specs, hook, None):
            return dict(getattr(function, f"{PROJECT}_spec", None) or {})
    return {}


class _PluginManager(pluggy.PluginManager):
    """Takes a method named after a hook as its implementation, with or without `hookimpl`."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        marked = super().parse_hookimpl_opts(plugin, name)
        if marked is not None or name not in HOOKS:
            return marked
        return {} if callable(getattr(type(plugin), name, None)) else None


def check_unique_names(participants: Sequence[Participant]) -> None:
    """Refuse two plugins of one name."""
    seen: dict[str, Participant] = {}
    for one in participants:
        if one.name in seen:
            raise PluginError(
                f"{one.label} takes part twice, or shares its name with {seen[one.name].label}.",
                "try: name each plugin once",
            )
        seen[one.name] = one


def _problems(found: FoundPlugin, plugin: object) -> Iterable[str]:
    """One text per mistake in a plugin's hooks, each with how to fix it."""
    kind = type(plugin)
    implemented: set[str] = set()
    methods = dict(_methods(kind))
    for name, function in methods.items():
        options = getattr(function, _MARK, None)
        hook = (options or {}).get("specname") or name
        if hook in HOOKS:
            implemented.add(hook)
            yield from _function_problems(found, kind, name, hook, function, options or {})
        elif options is not None and not options.get("optionalhook"):
            yield _unknown(found, hook)
        elif options is None and (guess := _similar_hook(name, kind)):
            yield (
                f"{found.label}: {kind.__name__}.{name} is not a hook, but looks like {guess!r}.\n"
                f"  Rename it to {guess!r}, or start its name with an underscore."
            )
    for name, hook in _OTHER_NAMES.items():
        if name in methods and hook not in implemented:
            yield (
                f"{found.label}: {kind.__name__}.{name} is not a hook; rlplug calls it {hook!r}.\n"
                f"  Rename it to {hook!r}, or start its name with an underscore."
            )
    for name in getattr(plugin, "__dict__", ()):
        if name in HOOKS:
            yield (
                f"{found.label}: {name!r} is the name of a hook, but an instance attribute.\n"
                f"  Define it as a method of {kind.__name__}, or rename it."
            )
    if found.kind == ALGORITHM and "build" not in implemented:
        yield f"{found.label} has no 'build'.\n  Define {kind.__name__}.build: it makes the module."


def _methods(kind: type[Any]) -> Iterable[tuple[str, Any]]:
    for name in dir(kind):
        if name.startswith("_"):
            continue
        static = inspect.getattr_static(kind, name)
        function = getattr(static, "__func__", static)
        if inspect.isfunction(function) or name in HOOKS:
            yield name, function


def _function_problems(
    found: FoundPlugin,
    kind: type[Any],
    name: str,
    hook: str,
    function: Any,
    options: dict[str, Any],
) -> Iterable[str]:
    where = f"{found.label}: {kind.__name__}.{name}"
    if not inspect.isfunction(function):
        yield f"{where} has a hook's name but is not a method.\n  Make it a method, or rename it."
        return
    if inspect.iscoroutinefunction(function):
        yield f"{where} is a coroutine, but hooks are not awaited.\n  Use def instead of async def."
    wrapper = bool(options.get("wrapper") or options.get("hookwrapper"))
    if inspect.isgeneratorfunction(function) != wrapper:
        yield (
            f"{where} is marked as a wrapper, but does not yield.\n"
            "  Yield once: module = yield; return module."
            if wrapper
            else f"{where} yields, which only a wrapper does.\n"
            "  Return the result, or use @rlplug.hookimpl(wrapper=True)."
        )
    if options.get("hookwrapper"):
        yield f"{where} is an old-style wrapper.\n  Use @rlplug.hookimpl(wrapper=True)."
    if options.get("tryfirst") or options.get("trylast"):
        yield (
            f"{where} is marked tryfirst or trylast.\n"
            "  Hooks run in the order of the config: remove it, and list the add-ons in order."
        )
    if options.get("wrapper") and hook != "build":
        yield (
            f"{where} wraps {hook!r}, which cannot be wrapped.\n"
            "  Only 'build' can; remove wrapper=True."
        )
    if found.kind == ADDON and hook == "build" and not options.get("wrapper"):
        yield (
            f"{found.label} would replace the algorithm's 'build'.\n"
            "  An add-on may only wrap this hook: use @rlplug.hookimpl(wrapper=True)."
        )
    if found.kind == ALGORITHM and hook == "build" and options.get("wrapper"):
        yield f"{where} wraps 'build', which an algorithm must implement.\n  Remove wrapper=True."
    bound = not isinstance(inspect.getattr_static(kind, name), staticmethod)
    yield from _parameter_problems(where, hook, function, bound=bound)


def _parameter_problems(where: str, hook: str, function: Any, *, bound: bool) -> Iterable[str]:
    parameters = list(inspect.signature(function).parameters.values())
    offered = HOOKS[hook]
    if bound:
        if not parameters or parameters[0].name in offered:
            yield f"{where} has no 'self'.\n  Add it before the hook's arguments."
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind == parameter.VAR_POSITIONAL else "**"
            yield (
                f"{where} takes {stars}{parameter.name}.\n"
                f"  Name the arguments that it takes, of: {', '.join(offered) or 'none'}."
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


def _unknown(found: FoundPlugin, hook: str) -> str:
    guess = did_you_mean(hook, HOOKS, sentence=True)
    advice = guess or "See: rlplug plugins hooks"
    return f"{found.label} implements an unknown hook {hook!r}.\n  {advice}"


def _similar_hook(name: str, kind: type[Any]) -> str:
    from rlplug.plugin import AddOn, Algorithm

    if hasattr(Algorithm, name) or hasattr(AddOn, name):
        return ""
    near = difflib.get_close_matches(name.lower(), HOOKS, n=1, cutoff=0.88)
    return near[0] if near else ""
