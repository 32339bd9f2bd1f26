"""Whether a saved state fits a learner: asked before anything of it is put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rlplug.errors import RequestError
from rlplug.plugin import ALL_MODULES

if TYPE_CHECKING:
    from rlplug.learner.owned import Owned

__all__ = ["FORMAT", "check_origin", "check_weights", "compare"]

FORMAT = 1


def check_origin(learner: Owned, saved: Mapping[str, Any]) -> None:
    """Refuse a state of another format, or of other plugins."""
    if saved.get("format") != FORMAT:
        raise RequestError(
            f"the state has format {saved.get('format')!r}, this rlplug reads {FORMAT}.",
            "load it with the version of rlplug that saved it",
        )
    here = {one.name: one.found.package for one in learner.calls.participants}
    there = dict(saved["plugins"])
    for name in {**there, **here}:
        if here.get(name) != there.get(name):
            raise RequestError(
                f"the state was saved with plugin {name!r} as {there.get(name, 'absent')}, "
                f"here it is {here.get(name, 'absent')}.",
                f"try: pip install {there[name].replace(' ', '==')}"
                if name in there
                else f"take part without {name!r}",
            )


def check_weights(learner: Owned, saved: Mapping[str, Any]) -> None:
    """Refuse modules, extras and optimizers of other names or shapes than the learner's."""
    model = next(iter(learner.members.values()))
    for module_id, weights in saved["modules"].items():
        member = learner.members.get(module_id, model)
        compare(member.module, weights, f"module {module_id!r}")
        known = saved["extra"].get(module_id, {})
        for plugin, extra in member.extras.items():
            if plugin not in known:
                raise _unfit(f"it has no extra of plugin {plugin!r} for module {module_id!r}")
            compare(extra, known[plugin], f"the extra of {plugin!r} for module {module_id!r}")
        mine = [(one.name, len(one.params)) for one in member.optimizers]
        _compare_optimizers(mine, saved["optimizers"].get(module_id, {}), module_id)
    if learner.shared_stage is not None:
        mine = [(one.name, len(one.params)) for one in learner.shared_stage.member.optimizers]
        _compare_optimizers(mine, saved["optimizers"].get(ALL_MODULES, {}), ALL_MODULES)


def compare(module: nn.Module, saved: Mapping[str, Tensor], what: str) -> None:
    """Refuse weights of other names or shapes than the module's."""
    own = module.state_dict()
    for name in own:
        if name not in saved:
            raise _unfit(f"it has no {name!r} for {what}")
        if isinstance(own[name], Tensor) and own[name].shape != saved[name].shape:
            raise _unfit(
                f"{name!r} of {what} has shape {tuple(saved[name].shape)} there, "
                f"{tuple(own[name].shape)} here"
            )
    for name in saved:
        if name not in own:
            raise _unfit(f"{what} has no {name!r} here")


def _compare_optimizers(
    mine: Sequence[tuple[str, int]], states: Mapping[str, Any], module_id: str
) -> None:
    names = {name for name, _ in mine}
    if names != set(states):
        raise _unfit(
            f"module {module_id!r} has optimizers {sorted(states)} there, {sorted(names)} here"
        )
    for name, held in mine:
        count = sum(len(group["params"]) for group in states[name]["param_groups"])
        if count != held:
            raise _unfit(
                f"optimizer {name!r} of module {module_id!r} holds {count} parameters there, "
                f"{held} here"
            )


def _unfit(reason: str) -> RequestError:
    return RequestError(
        f"the state does not fit this learner: {reason}.",
        "use the options and spaces of the run that saved it",
    )
