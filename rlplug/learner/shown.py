"""Show gradients to plugins, and take back what they made of them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from rlplug.errors import PluginError
from rlplug.learner.gradients import laid_out

if TYPE_CHECKING:
    from rlplug.hooks.calls import HookCalls
    from rlplug.learner.member import Member
    from rlplug.learner.optimizers import Registered
    from rlplug.plugin import LearnerView

__all__ = ["show_gradients"]

Shown: TypeAlias = "list[tuple[str, set[str], MutableMapping[str, Tensor]]]"


def show_gradients(
    calls: HookCalls,
    member: Member,
    acting: Sequence[Registered],
    terms: Mapping[str, Mapping[str, Tensor]],
    metrics: MutableMapping[str, Any],
    learner: LearnerView,
) -> None:
    """Let plugins change the gradients of what acts: each sees its own, add-ons see all."""
    params = {id(param) for one in acting for param in one.params}
    given = {
        name: param.grad
        for name, param in member.named.items()
        if param.grad is not None and id(param) in params
    }
    shown: Shown = []

    def seen(plugin: str) -> MutableMapping[str, Tensor]:
        _take_back(shown, given)
        own = plugin == member.algorithm
        view = {n: g for n, g in given.items() if not own or member.owners[n] == plugin}
        shown.append((plugin, set(view), view))
        return view

    calls.postprocess_gradients(member.module_id, member.module, seen, terms, metrics, learner)
    _take_back(shown, given)
    for name, gradient in given.items():
        member.named[name].grad = laid_out(gradient, member.named[name])


def _take_back(shown: Shown, given: dict[str, Tensor]) -> None:
    """Refuse what vanished from a plugin's view or appeared in it."""
    while shown:
        plugin, names, view = shown.pop()
        if lost := sorted(names - set(view)):
            raise PluginError(
                f"plugin {plugin!r} let the gradient of {lost[0]!r} vanish "
                f"({len(lost)} of {len(names)}).",
                "set a gradient to zero to keep a parameter where it is",
            )
        if foreign := sorted(set(view) - names):
            raise PluginError(
                f"plugin {plugin!r} gave a gradient to {foreign[0]!r}, which it was not shown.",
                f"it was shown: {', '.join(sorted(names)) or 'none'}",
            )
        given.update(view)
