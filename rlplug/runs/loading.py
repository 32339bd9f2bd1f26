"""Load the policy of a tracked run: find the checkpoint, build the module, restore its state."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
from gymnasium.spaces import Dict

from rlplug.checkpoint import Manifest, find_checkpoint, read_manifest
from rlplug.checkpoint.manifest import CONFIG, damaged, reading
from rlplug.checkpoint.state import SavedPolicy, restore_policy
from rlplug.checkpoint.trust import OF_POLICY, admit
from rlplug.envs import Normalization
from rlplug.errors import RequestError
from rlplug.evaluation.agents import AgentModules
from rlplug.logs.encoding import Encoder
from rlplug.plugin import DEFAULT_MODULE
from rlplug.quantities import is_whole_number
from rlplug.registry import Registry, core_version, packages
from rlplug.runs.build_learner import make_learner
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request
from rlplug.runs.weights import nonfinite_weights
from rlplug.serving import AgentPolicy, Policy
from rlplug.serving.agents import policies_by_agent
from rlplug.serving.description import space_as_json
from rlplug.spaces import AnySpace, space_from_dict

__all__ = ["Loaded", "about", "load", "load_checkpoint"]

_LIBRARIES = ("torch", "numpy", "gymnasium")
_LOG = logging.getLogger("rlplug")


@attrs.frozen(kw_only=True, eq=False)
class Loaded:
    """A policy and the run it comes from."""

    policy: Policy
    prepared: Prepared
    saved: SavedPolicy
    manifest: Manifest
    path: Path


def load(
    run: str | Path,
    *,
    checkpoint: str | int | Path = "best",
    seed: int = 0,
    registry: Registry | None = None,
    trust: bool = False,
) -> Policy:
    """The policy of a run: `load(RUN_ID).predict(observation)`.

    `run` is the id or name of a run, `last`, its folder, or the folder of one checkpoint;
    `checkpoint` is `best`, `last`, a step (as in `RUN_ID@STEP`) or a folder. `models:/NAME@ALIAS`,
    `models:/NAME/VERSION` and `models:/m-ID` are models in MLflow. `seed` is for stochastic
    actions. For a run of plugins that are not installed, pass their classes:
    `registry=Registry.of(mine=Mine)`. A run that was not made here and names code to import, such
    as an encoder, needs `trust=True`.
    """
    if not is_whole_number(seed) or seed < 0:
        raise RequestError(f"a seed is a whole number from 0 on, got {seed!r}.", "try: seed=0")
    path = find_checkpoint(str(run), checkpoint)
    return load_checkpoint(path, seed=seed, registry=registry, trust=trust).policy


def load_checkpoint(
    path: Path,
    *,
    seed: int = 0,
    registry: Registry | None = None,
    trust: bool = False,
    imports: Sequence[str] = OF_POLICY,
) -> Loaded:
    """The policy in a checkpoint, on the CPU and ready to act.

    Without `trust`, a checkpoint of somebody else is refused if what is used of its config
    `imports` code.
    """
    manifest, saved = read_manifest(path), SavedPolicy.read(path)
    arguments = saved.environment["arguments"] if "env" in imports else {}
    admit(path, imports, trust=trust, arguments=arguments)
    registry = Registry.installed() if registry is None else registry
    # The file has all options: a preset that has changed since must not override them.
    request = Request(config=path / CONFIG, flags={"run": {"preset": ""}})
    with registry.made_with(manifest.plugins), reading(path, CONFIG):
        prepared = prepare(request, registry)
        calls = prepared.hooks()
    for name, installed in packages(calls.participants).items():
        written = manifest.plugins.get(name, installed)
        if written != installed:
            said = "rlplug: warning: this checkpoint was written by %s; %s is installed."
            _LOG.warning(said, written, installed)
    config = prepared.config
    if config.env.normalize_observation and not saved.normalization:
        raise damaged(path, "env.normalize_observation is true, but it has no statistics")
    with reading(path, "options and spaces"):
        shown, scalings = _spaces(saved, prepared)
        learner = make_learner(
            prepared,
            calls,
            {
                name: (scalings[name].space(space) if name in scalings else space, actions)
                for name, (space, actions) in shown.items()
            },
            attrs.evolve(config.compute, device="cpu", compile=False),
            training_spaces={
                name: space_from_dict(space)
                for name, space in saved.environment.get("training", {}).items()
            },
        )
    constants = nonfinite_weights(learner)
    with reading(path, "weights"):
        restore_policy(learner, saved)
        nonfinite = sorted(nonfinite_weights(learner) - constants)
        if nonfinite and manifest.finite:
            raise damaged(path, f"{nonfinite[0]} has numbers that are not finite")
        if nonfinite:
            said = "rlplug: warning: the checkpoint %s has numbers that are not finite: %s."
            _LOG.warning(said, path, nonfinite[0])
        calls.configs.at_step(manifest.step)
        modules = {
            module_id: calls.inference_module(module_id, module, learner)
            for module_id, module in learner.modules.items()
        }
    policies = {
        module_id: Policy(
            module.eval(),
            *shown[module_id],
            normalization=scalings.get(module_id),
            frame_stack=config.env.frame_stack,
            step=manifest.step,
            run_steps=config.run.steps,
            path=path,
            seed=seed,
            encoder=Encoder.of(saved.environment.get("encoder", {})),
        )
        for module_id, module in modules.items()
    }
    agents: Mapping[str, str] = saved.environment.get("agents", {})
    policy = policies.get(DEFAULT_MODULE)
    if agents:
        policy = AgentPolicy(
            policies_by_agent(agents, policies, seed),
            AgentModules(modules),
            modules=agents,
            step=manifest.step,
            path=path,
        )
    assert policy is not None
    return Loaded(policy=policy, prepared=prepared, saved=saved, manifest=manifest, path=path)


def _spaces(
    saved: SavedPolicy, prepared: Prepared
) -> tuple[dict[str, tuple[AnySpace, AnySpace]], dict[str, Normalization]]:
    """Observation and action space of each module, and what normalizes its observations."""
    observations, actions = saved.observation_space, saved.action_space
    agents, states = saved.environment.get("agents", {}), saved.normalization
    spaces: dict[str, tuple[AnySpace, AnySpace]] = {DEFAULT_MODULE: (observations, actions)}
    if agents:
        assert isinstance(observations, Dict)
        assert isinstance(actions, Dict)
        spaces = {
            module_id: (observations[agent], actions[agent]) for agent, module_id in agents.items()
        }
    elif states:
        states = {DEFAULT_MODULE: states}
    scalings = {}
    for module_id, state in states.items():
        scalings[module_id] = Normalization(prepared.config.env, spaces[module_id][0], 1)
        scalings[module_id].set_state(state)
    return spaces, scalings


def _names(encoder: Encoder) -> dict[str, Any]:
    """The names of features, levels and arms, as far as there are any."""
    names = {
        "features": list(encoder.names),
        "categories": {name: list(levels) for name, levels in encoder.categories.items()},
        "arms": list(encoder.arms),
    }
    return {name: value for name, value in names.items() if value}


def about(loaded: Loaded) -> dict[str, Any]:
    """What a server tells of a policy: run, step, spaces, versions, as values that JSON has."""
    config, policy = loaded.prepared.config, loaded.policy
    return {
        "run_id": loaded.manifest.run_id,
        "step": loaded.manifest.step,
        "checkpoint": loaded.path.name,
        "algorithm": config.run.algorithm,
        "environment": loaded.saved.environment["name"],
        "observation_space": space_as_json(policy.observation_space),
        "action_space": space_as_json(policy.action_space),
        **({"agents": policy.modules} if isinstance(policy, AgentPolicy) else {}),
        **_names(policy.encoder),
        "frame_stack": policy.frame_stack,
        "normalizes_observations": policy.normalization is not None
        and policy.normalization.changes_observations,
        "versions": {
            "rlplug": core_version(),
            **{name: metadata.version(name) for name in _LIBRARIES},
        },
        "trained_with": dict(loaded.manifest.plugins),
    }
