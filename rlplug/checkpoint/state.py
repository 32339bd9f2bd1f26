"""The state in a checkpoint: the policy, which acting needs, and what training goes on with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from gymnasium import spaces

from rlplug.checkpoint.manifest import (
    POLICY,
    STEPS,
    TRAINING,
    read_manifest,
    reading,
    replay_folder,
    verify,
)
from rlplug.checkpoint.replay_files import restore_rows
from rlplug.checkpoint.weights import load_weights
from rlplug.errors import RequestError
from rlplug.feeds import OpenFeed
from rlplug.learner.member import load_part
from rlplug.spaces import space_from_dict, space_to_dict
from rlplug.trees import read_tree

if TYPE_CHECKING:
    from rlplug.envs import Environments, Normalization
    from rlplug.learner import Learner

_LOG = logging.getLogger("rlplug")

ACTING = ("modules", "extra", "plugin_states")
"""The parts of a learner's state that acting needs."""


_ENVIRONMENT = {"name": str, "has_id": bool, "arguments": dict, "agents": dict, "training": dict}
_OF_LOG = {"encoder": dict}


def _is_environment(saved: Any, field: Any, value: Any) -> None:
    types = {name: type(part) for name, part in value.items()}
    if types not in (_ENVIRONMENT, _ENVIRONMENT | _OF_LOG):
        raise ValueError(f"environment is {value!r}")


@attrs.frozen(kw_only=True, eq=False)
class SavedPolicy:
    """The part of a checkpoint that acting needs."""

    modules: Mapping[str, Any]
    extra: Mapping[str, Any]
    plugin_states: Mapping[str, Any]
    observation_space: spaces.Space[Any] = attrs.field(converter=space_from_dict)
    """Of one environment, before normalization."""
    action_space: spaces.Space[Any] = attrs.field(converter=space_from_dict)
    normalization: Mapping[str, Any]
    """Its state; empty without one."""
    environment: Mapping[str, Any] = attrs.field(validator=_is_environment)
    """`name`; `has_id`: whether it can be made by its id; `arguments` to make the same one;
    `agents`: the module of each of several; `training`: of the modules that learn from more than
    one agent sees, the space of that; `encoder`: how a log was read, if it was one."""

    @classmethod
    def read(cls, checkpoint: Path, copies: Mapping[str, Any] | None = None) -> SavedPolicy:
        """Read it from a checkpoint's folder, without unpickling.

        `copies` are the weights of modules that take the place of those in the checkpoint.
        """
        with reading(checkpoint, POLICY):
            tree = read_tree(checkpoint / POLICY)
            tree["modules"] = {**tree["modules"], **(copies or {})}
            return cls(**tree)


def split_state(
    learner: Learner, environments: Environments, *, has_id: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The current state that acting needs, and the rest of the learner's state."""
    state = learner.get_state()
    vector, normalization = environments.vector, environments.normalization
    # Each bandit environment draws a problem of its own, unless it is given the seed.
    problem = getattr(vector.unwrapped, "problem_seed", None)
    policy = {
        **{name: state.pop(name) for name in ACTING},
        "observation_space": space_to_dict(vector.single_observation_space),
        "action_space": space_to_dict(vector.single_action_space),
        "normalization": {} if normalization is None else normalization.get_state(),
        "environment": {
            "name": environments.name,
            "has_id": has_id,
            "arguments": {} if problem is None else {"problem_seed": problem},
            "agents": dict(environments.agents),
            "training": {
                name: space_to_dict(space) for name, space in environments.training_spaces.items()
            },
            **({"encoder": environments.encoder.plain()} if environments.encoder else {}),
        },
    }
    return policy, state


def restore_policy(learner: Learner, saved: SavedPolicy) -> None:
    """Load the saved policy into a learner; refused if it lacks a part of it."""
    _set_modules(learner, saved)
    for module_id, extras in learner.extra.items():
        for plugin, extra in extras.items():
            what = f"the extra of {plugin!r} for module {module_id!r}"
            weights = _part(saved.extra.get(module_id, {}), plugin, what)
            load_part(extra, weights, f"the extra of plugin {plugin!r}")
    for name in (one.name for one in learner.calls.implementations("load_state")):
        _part(saved.plugin_states, name, f"the state of plugin {name!r}")
    learner.calls.load_state(saved.plugin_states)


def _set_modules(learner: Learner, saved: SavedPolicy) -> None:
    there = ", ".join(map(str, saved.modules)) or "(none)"
    for module_id in learner.modules:
        _part(saved.modules, module_id, f"module {module_id!r}; it has the modules {there}")
    learner.set_module_state(saved.modules)


def _part(saved: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in saved:
        raise RequestError(
            f"the checkpoint lacks {what}.",
            "try: a checkpoint of a run with the same plugins and [modules]",
        )
    return saved[name]


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
        raise RequestError(
            "observations are normalized either in this run or in that of run.init_from, not in "
            "both.",
            f"try: --set env.normalize_observation={str(there).lower()}",
        )
    if strict:
        _set_modules(learner, saved)
    else:
        for module_id, module in learner.modules.items():
            rest = load_weights(module, saved.modules.get(module_id, {}), strict=False)
            for line in rest.lines():
                _LOG.warning("rlplug: run.init_from, module %r: %s.", module_id, line)
    if normalization is not None and saved.normalization:
        normalization.set_state(saved.normalization)


def _normalizes(saved: Mapping[str, Any]) -> bool:
    """Whether a saved normalization changes observations; with several agents, of any module."""
    if "moments" not in saved:
        return any(_normalizes(one) for one in saved.values() if isinstance(one, Mapping))
    # The last moments are of rewards, the others of observations.
    return len(saved["moments"]) > 1


# -- training -----------------------------------------------------------------------------------


def newest_valid(folder: Path, run_id: str = "") -> Path | None:
    """The newest checkpoint in a run's folder whose files are all as they were written.

    Each one that is not is told in a warning; one of another run is none. Only if there is no
    other, one without its replay buffer. None if there is no checkpoint at all.
    """
    paths = sorted((folder / "checkpoints").glob(STEPS), reverse=True)
    if not paths:
        return None
    for replay in (True, False):
        problems: list[str] = []
        for path in paths:
            try:
                manifest = verify(path, run_id, resume=True, replay=replay)
            except RequestError as error:
                problems.append(error.message)
                continue
            on = f"The run goes on from step {manifest.step:,}."
            for message in problems:
                _LOG.warning("rlplug: warning: %s %s", message, on)
            return path
    raise RequestError(
        f"no checkpoint in {folder / 'checkpoints'} can be resumed from:",
        *problems,
        "try: the version of rlplug that wrote them, or a new run with --init-from",
    )


def read_training(checkpoint: Path) -> dict[str, Any]:
    """All that training goes on with, without the rows of a replay buffer; nothing is unpickled.

    `learner`: what `Learner.set_state` takes; `policy`: what acting needs besides; `periodic`:
    the best evaluation; `feed`; `run`: what the run itself keeps.
    """
    with reading(checkpoint, "training state"):
        policy = read_tree(checkpoint / POLICY)
        training = read_tree(checkpoint / TRAINING)
        parts = {name: training.pop(name) for name in ("periodic", "feed", "run")}
        learner = {**training, **{name: policy.pop(name) for name in ACTING}}
    return {"learner": learner, "policy": policy, **parts}


def restore_feed(checkpoint: Path, feed: OpenFeed, saved: Mapping[str, Any]) -> str:
    """Restore a feed, with the state that `read_training` gave.

    Returns why its replay buffer is empty, or an empty text if it is not.
    """
    rows, folder = feed.rows, replay_folder(checkpoint)
    files, reason = read_manifest(checkpoint).replay, ""
    with reading(checkpoint, "feed"):
        if rows is None:
            feed.set_state(saved)
            return ""
        if not any((folder / name).exists() for name in files):
            reason = (
                f"it has no files in {folder} (checkpoint.save_replay writes them; the latest "
                "checkpoints keep theirs, and only checkpoint.upload_replay uploads them)"
            )
        else:
            try:
                with reading(checkpoint, "replay buffer"):
                    restore_rows(folder, files, feed)
            except RequestError as error:
                rows.clear()
                reason = error.message
        feed.set_state_without_rows(saved, empty=bool(reason))
    return reason
