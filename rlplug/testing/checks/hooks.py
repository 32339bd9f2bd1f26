"""Checks of hooks: that they are well formed, and move only what is theirs to move."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rlplug.errors import PluginError
from rlplug.hooks.binding import HOOKS, bind
from rlplug.testing.bench import Bench, bench_of, copied
from rlplug.testing.comparing import first_difference
from rlplug.testing.report import CheckFailed, place
from rlplug.testing.subject import Subject

__all__ = ["check_hooks_are_well_formed", "check_hooks_move_no_parameter"]

_LOOKING = ("prepare_batch", "compute_loss_for_module", "postprocess_gradients")


def check_hooks_are_well_formed(subject: Subject) -> None:
    """Every hook is known, takes arguments that it is offered, and nothing looks like a typo."""
    try:
        bind([subject.participant()])
    except PluginError as error:
        raise CheckFailed(
            "hooks as the contract has them", error.message, place(subject.kind)
        ) from error


def check_hooks_move_no_parameter(subject: Subject) -> None:
    """Losses, targets and gradients are computed without changing a parameter on the way."""
    benches: list[Bench] = []
    kind = subject.kind
    guarded = _LOOKING if not subject.is_addon else (*_LOOKING, "additional_update")
    hooks = {
        name: _watched(getattr(kind, name), name, subject, benches)
        for name in guarded
        if name in HOOKS and hasattr(kind, name)
    }
    watched = type(kind.__name__, (kind,), {**hooks, "__doc__": kind.__doc__})
    benches.append(bench_of(subject, kind=watched))
    benches[0].live(3)


def _watched(
    method: Callable[..., Any], name: str, subject: Subject, benches: list[Bench]
) -> Callable[..., Any]:
    @functools.wraps(method)
    def hook(*arguments: Any) -> Any:
        parameters = _foreign(benches[0], subject)
        before = copied(parameters)
        answer = method(*arguments)
        difference = first_difference(before, parameters)
        if difference is not None:
            raise CheckFailed(
                f"{name} leaves parameters to the optimizers"
                if not subject.is_addon
                else f"{name} leaves the parameters of others alone",
                f"it moved {difference}",
                place(subject.kind, name),
            )
        return answer

    return hook


def _foreign(bench: Bench, subject: Subject) -> dict[str, Any]:
    """Parameters that a hook may not move: all, or for an add-on those that it does not own."""
    return {
        name: param
        for member in bench.learner.members.values()
        for name, param in member.named.items()
        if not subject.is_addon or member.owners[name] != subject.found.name
    }
