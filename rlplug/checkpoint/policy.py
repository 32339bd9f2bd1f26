"""The state in a checkpoint that acting needs: the policy, with its spaces and normalization."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.checkpoint.manifest import POLICY, damaged, reading
from rlplug.checkpoint.weights import load_weights
from rlplug.errors import RequestError
from rlplug.learner.member import load_part
from rlplug.spaces import space_from_dict, space_to_dict
from rlplug.trees import INDEX, read_tree

if TYPE_CHECKING:
    from rlplug.envs import Environments, Normalization
    from rlplug.learner import Learner

__all__ = [
    "ACTING",
    "SavedPolicy",
    "init_from",
    "restore_policy",
    "split_state",
]

_LOG = logging.getLogger("rlplug")

ACTING = ("modules", "extra", "plugin_states")
"""The parts of a learner's state that acting needs."""


@attrs.frozen(kw_only=True, eq=False)
class SavedPolicy:
    """The part of a checkpoint that acting needs."""

    modules: Mapping[str, Any]
    extra: Mapping[str, Any]
    plugin_states: Mapping[str, Any]
    observation_space: spaces.Space[Any]
    """Of one environment, before normalization."""
    action_space: spaces.Space[Any]
    normalization: Mapping[str, Any]
    """Its state; empty without one."""
    environment: Mapping[str, Any]
    """`name`; `has_id`: whether it can be made by its id; `arguments` to make the same one;
    with several agents, `agents`: the module of each; `training`: of the modules that learn from
    more than one agent sees, the space of that."""

    @classmethod
    def read(cls, checkpoint: Path) -> SavedPolicy:
        """Read it from a checkpoint's folder, without unpickling."""
        with reading(checkpoint, POLICY):
            tree = read_tree(checkpoint / POLICY)
        problem = _problem(tree)
        if problem is not None:
            raise damaged(checkpoint, f"{POLICY}/{INDEX}: {problem}")
        for name in ("observation_space", "action_space"):
            with reading(checkpoint, name):
                tree[name] = space_from_dict(tree[name])
        return cls(**tree)


def _problem(tree: Any) -> str | None:
    """What is wrong with the parts of a saved policy; None if nothing is."""
    if not isinstance(tree, Mapping):
        return f"expected a mapping, got {type(tree).__name__}"
    names = [field.name for field in attrs.fields(SavedPolicy)]
    if set(tree) != set(names):
        return f"expected the parts {', '.join(names)}, got {', '.join(map(repr, tree))}"
    for name, part in tree.items():
        if not isinstance(part, Mapping):
            return f"{name} is {type(part).__name__}, expected a mapping"
    match tree["environment"]:
        case {"name": str(), "has_id": bool(), "arguments": Mapping() as arguments, **others}:
            more = [others.pop(name, {}) for name in ("agents", "training")]
            valid = not others and all(isinstance(name, str) for name in arguments)
            valid = valid and all(isinstance(one, Mapping) for one in more)
        case _:
            valid = False
    return None if valid else f"environment is {dict(tree['environment'])!r}"


def split_state(
    learner: Learner, environments: Environments, *, has_id: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The current state that acting needs, and the rest of the learner's state."""
    state = learner.get_state()
    vector, normalization = environments.vector, environments.normalization
    # Each bandit environment draws a problem of its own, unless it is given the seed.
    problem = getattr(vector.unwrapped, "problem_seed", None)
    more: dict[str, Any] = {"agents": dict(environments.agents)} if environments.agents else {}
    training = environments.training_spaces
    if training:
        more["training"] = {name: space_to_dict(space) for name, space in training.items()}
    policy = {
        **{name: state.pop(name) for name in ACTING},
        "observation_space": space_to_dict(vector.single_observation_space),
        "action_space": space_to_dict(vector.single_action_space),
        "normalization": {} if normalization is None else normalization.get_state(),
        "environment": {
            "name": environments.name,
            "has_id": has_id,
            "arguments": {} if problem is None else {"problem_seed": problem},
            **more,
        },
    }
    return policy, state


def restore_policy(learner: Learner, saved: SavedPolicy) -> None:
    """Load the saved policy into a learner; refused if it lacks a part of it."""
    _set_modules(learner, saved)
    for module_id, extras in learner.extra.items():
        for plugin, extra in extras.items():
            there = saved.extra.get(module_id, {})
            if plugin not in there:
                raise _lacking(f"the extra of {plugin!r} for module {module_id!r}")
            load_part(extra, there[plugin], f"the extra of plugin {plugin!r}")
    for one in learner.calls.implementations("load_state"):
        if one.name not in saved.plugin_states:
            raise _lacking(f"the state of plugin {one.name!r}")
    learner.calls.load_state(saved.plugin_states)


def _set_modules(learner: Learner, saved: SavedPolicy) -> None:
    for module_id, module in learner.modules.items():
        if module_id not in saved.modules:
            raise RequestError(
                f"the checkpoint lacks module {module_id!r}; it has the modules "
                f"{', '.join(map(str, saved.modules)) or '(none)'}.",
                "try: a checkpoint of a run with the same [modules]",
            )
        for name, own in module.state_dict().items():
            there = saved.modules[module_id].get(name, own)
            # Other precisions are converted; what is no weight at all must not become one.
            if isinstance(there, Tensor) and _kind(there) != _kind(own):
                raise RequestError(
                    f"{name!r} of module {module_id!r} has dtype {there.dtype} there, "
                    f"{own.dtype} here.",
                    "try: a checkpoint of the same version of the plugin",
                )
    learner.set_module_state(saved.modules)


def _kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "int"


def _lacking(what: str) -> RequestError:
    return RequestError(
        f"the checkpoint lacks {what}.", "try: a checkpoint of a run with the same plugins"
    )


def init_from(
    learner: Learner,
    normalization: Normalization | None,
    saved: SavedPolicy,
    *,
    strict: bool = True,
) -> None:
    """Start a new run with the weights and the normalization of another one.

    Without `strict`, weights that do not fit are named in a warning, and stay as they were made.
    """
    here = normalization is not None and normalization.changes_observations
    there = _normalizes(saved.normalization)
    if here != there:
        words = {True: "normalized", False: "raw"}
        raise RequestError(
            f"the weights of run.init_from were trained on {words[there]} observations, "
            f"but this run's are {words[here]}.",
            f"try: --set env.normalize_observation={str(there).lower()}",
        )
    if strict:
        _set_modules(learner, saved)
    else:
        _set_what_fits(learner, saved)
    if normalization is not None and saved.normalization:
        normalization.set_state(saved.normalization)


def _normalizes(saved: Mapping[str, Any]) -> bool:
    """Whether a saved normalization changes observations; with several agents, of any module."""
    if "moments" not in saved:
        return any(_normalizes(one) for one in saved.values() if isinstance(one, Mapping))
    # The last moments are of rewards, the others of observations.
    return len(saved["moments"]) > 1


def _set_what_fits(learner: Learner, saved: SavedPolicy) -> None:
    for module_id, module in learner.modules.items():
        left = load_weights(module, saved.modules.get(module_id, {}), strict=False)
        for line in left.lines():
            _LOG.warning("rlplug: run.init_from, module %r: %s.", module_id, line)
