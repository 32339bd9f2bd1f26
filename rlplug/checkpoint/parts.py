"""What of a run goes into a checkpoint: what acting takes, what going on takes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.checkpoint.checkpoints import POLICY
from rlplug.checkpoint.described import described, restored
from rlplug.errors import RequestError
from rlplug.learner import state

if TYPE_CHECKING:
    from gymnasium import spaces

    from rlplug.envs import Environments, Normalization
    from rlplug.learner import Learner

__all__ = ["SavedPolicy", "fill", "split", "start_from"]

_ACTING = ("modules", "extra", "plugin_states")


@attrs.frozen(kw_only=True, eq=False)
class SavedPolicy:
    """The part of a checkpoint that acting takes."""

    modules: Mapping[str, Any]
    extra: Mapping[str, Any]
    plugin_states: Mapping[str, Any]
    observation_space: spaces.Space[Any]
    """Of one environment, before normalisation."""
    action_space: spaces.Space[Any]
    normalization: Mapping[str, Any]
    """Its state; empty without one."""
    environment: Mapping[str, Any]
    """`name`; `has_id`, whether it can be made again; `arguments` that make it the same again."""

    @classmethod
    def read(cls, checkpoint: Path) -> SavedPolicy:
        """Read it from the folder of a checkpoint; nothing is unpickled."""
        tree = state.read(checkpoint / POLICY)
        tree["observation_space"] = restored(tree["observation_space"])
        tree["action_space"] = restored(tree["action_space"])
        return cls(**tree)


def split(
    learner: Learner, environments: Environments, *, has_id: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What acting takes of a run as it stands, and the rest of its learner's state."""
    state = learner.get_state()
    vector, normalization = environments.vector, environments.normalization
    # Other environments of a bandit are other problems, unless they are told which one.
    problem = getattr(vector.unwrapped, "problem_seed", None)
    policy = {
        **{name: state.pop(name) for name in _ACTING},
        "observation_space": described(vector.single_observation_space),
        "action_space": described(vector.single_action_space),
        "normalization": {} if normalization is None else normalization.get_state(),
        "environment": {
            "name": environments.name,
            "has_id": has_id,
            "arguments": {} if problem is None else {"problem_seed": problem},
        },
    }
    return policy, state


def fill(learner: Learner, saved: SavedPolicy) -> None:
    """Make a learner act as the saved one did."""
    learner.set_module_state(saved.modules)
    for module_id, extras in learner.extra.items():
        for plugin, extra in extras.items():
            known = saved.extra.get(module_id, {})
            if plugin in known:
                extra.load_state_dict(known[plugin])
    learner.calls.load_state(saved.plugin_states)


def start_from(learner: Learner, normalization: Normalization | None, saved: SavedPolicy) -> None:
    """Let a new run begin with the weights of another one, and with the scales that they know."""
    scaled_here = normalization is not None and normalization.changes_observations
    # The last of the moments are those of rewards; the others are of observations.
    scaled_there = len(saved.normalization.get("moments", ())) > 1
    if scaled_here != scaled_there:
        words = {True: "scaled", False: "as they are"}
        raise RequestError(
            f"the weights of run.init_from were trained on observations {words[scaled_there]}, "
            f"here they are {words[scaled_here]}.",
            f"try: --set env.normalize_observation={str(scaled_there).lower()}",
        )
    learner.set_module_state(saved.modules)
    if normalization is not None and saved.normalization:
        normalization.set_state(saved.normalization)
