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
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.plugin import DEFAULT_MODULE
from rlplug.quantities import is_whole_number
from rlplug.registry import Registry, core_version
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request
from rlplug.runs.weights import WeightCheck
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
    if not isinstance(registry, Registry | None):
        raise RequestError(
            f"the registry is a {type(registry).__name__}, not a Registry.",
            "try: registry=Registry.of(mine=Mine)",
        )
    path = find_checkpoint(str(run), checkpoint)
    return load_checkpoint(path, seed=seed, registry=registry, trust=trust).policy


def load_checkpoint(
    path: Path,
    *,
    seed: int = 0,
    registry: Registry | None = None,
    copies: Mapping[str, Any] | None = None,
    trust: bool = False,
    imports: Sequence[str] = OF_POLICY,
) -> Loaded:
    """The policy in a checkpoint, on the CPU and ready to act.

    `copies` are the weights of modules of a league, in the place of those of the checkpoint.
    Without `trust`, a checkpoint of somebody else is refused if what is used of its config
    `imports` code.
    """
    manifest = read_manifest(path)
    copies = copies or {}
    saved = SavedPolicy.read(path, copies)
    arguments = saved.environment["arguments"] if "env" in imports else {}
    admit(path, imports, trust=trust, arguments=arguments)
    registry = Registry.installed() if registry is None else registry
    # The file has all options: a preset that has changed since must not override them.
    request = Request(config=path / CONFIG, flags={"run": {"preset": ""}})
    with registry.made_with(manifest.plugins), reading(path, CONFIG):
        prepared = prepare(request, registry)
        calls = prepared.hooks()
    _warn_of_other_versions(manifest, calls)
    config = prepared.config
    agents: Mapping[str, str] = saved.environment.get("agents", {})
    with reading(path, "options and spaces"):
        shown = _spaces_of(saved, agents)
        training = {
            module_id: space_from_dict(one)
            for module_id, one in saved.environment.get("training", {}).items()
        }
    if config.env.normalize_observation and not saved.normalization:
        raise damaged(path, "env.normalize_observation is true, but it has no statistics")
    normalizations: dict[str, Normalization] = {}
    spaces = dict(shown)
    if saved.normalization:
        with reading(path, "normalization"):
            for module_id, (space, actions) in shown.items():
                one = normalizations[module_id] = Normalization(config.env, space, 1)
                state = saved.normalization[module_id] if agents else saved.normalization
                one.set_state(state)
                spaces[module_id] = one.space(space), actions
    with reading(path, "options and spaces"):
        learner = Learner(
            calls,
            spaces,
            training_spaces=training,
            seed=config.run.seed,
            learning=config.learner,
            compute=attrs.evolve(config.compute, device="cpu", compile=False),
        )
        for module_id, section in config.modules.items():
            learner.set_options(module_id, section.options)
        learner.build()
    weights = WeightCheck(learner.modules, learner.extra)
    with reading(path, "weights"):
        restore_policy(learner, saved)
        _check_finite(path, manifest, weights.nonfinite())
        calls.configs.at_step(manifest.step)
        modules = {
            module_id: module
            if module_id in copies
            else calls.inference_module(module_id, module, learner)
            for module_id, module in learner.modules.items()
        }
    policies = {
        module_id: Policy(
            module.eval(),
            *shown[module_id],
            normalization=normalizations.get(module_id),
            frame_stack=config.env.frame_stack,
            step=manifest.step,
            run_steps=config.run.steps,
            path=path,
            seed=seed,
        )
        for module_id, module in modules.items()
    }
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


def _spaces_of(
    saved: SavedPolicy, agents: Mapping[str, str]
) -> dict[str, tuple[AnySpace, AnySpace]]:
    """Observation and action space of each module."""
    seen, done = saved.observation_space, saved.action_space
    if not agents:
        return {DEFAULT_MODULE: (seen, done)}
    assert isinstance(seen, Dict)
    assert isinstance(done, Dict)
    return {module_id: (seen[agent], done[agent]) for agent, module_id in agents.items()}


def _check_finite(path: Path, manifest: Manifest, nonfinite: Sequence[str]) -> None:
    """Warn of weights that the run knew not to be finite, and refuse others."""
    if not nonfinite:
        return
    more = f" and {len(nonfinite) - 1:,} more" if len(nonfinite) > 1 else ""
    if manifest.finite:
        raise damaged(path, f"{nonfinite[0]}{more} has numbers that are not finite")
    _LOG.warning(
        "rlplug: warning: the checkpoint %s has numbers that are not finite: %s%s.",
        path,
        nonfinite[0],
        more,
    )


def _warn_of_other_versions(manifest: Manifest, calls: HookCalls) -> None:
    for one in calls.participants:
        saved_by, installed = manifest.plugins.get(one.name, ""), one.found.package
        if saved_by and saved_by != installed:
            _LOG.warning(
                "rlplug: warning: this checkpoint was written by %s; %s is installed.",
                saved_by,
                installed,
            )


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
        "frame_stack": policy.frame_stack,
        "normalizes_observations": policy.normalization is not None
        and policy.normalization.changes_observations,
        "versions": {
            "rlplug": core_version(),
            **{name: metadata.version(name) for name in _LIBRARIES},
        },
        "trained_with": dict(loaded.manifest.plugins),
    }
