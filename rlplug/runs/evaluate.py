"""Evaluate a checkpoint of a tracked run on fresh episodes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.trust import OF_POLICY
from rlplug.durable import absolute_path
from rlplug.envs import Environments, EnvMaker, describe_env, make_environments
from rlplug.envs.agents import agent_environments, game_maker
from rlplug.errors import RequestError, did_you_mean
from rlplug.evaluation import Evaluator
from rlplug.evaluation.agents import AgentModules, RandomModule
from rlplug.evaluation.video import record as record_video
from rlplug.learner.device import device_for_environments
from rlplug.plugin import Module
from rlplug.registry import Registry
from rlplug.runs.loading import Loaded, load_checkpoint
from rlplug.seeding import derive
from rlplug.serving import AgentPolicy, Policy
from rlplug.spaces import describe, outline
from rlplug.tracking.console import Console
from rlplug.tracking.evaluations import EVALUATIONS, keep_result

__all__ = ["Evaluated", "evaluate"]

RANDOM = "random"
"""The opponent that acts at random."""


@attrs.frozen(kw_only=True)
class Evaluated:
    """The evaluation of a checkpoint."""

    run_id: str
    step: int
    """Environment steps the checkpoint was trained for."""
    checkpoint: Path
    metrics: dict[str, float]
    environment: str
    returns: tuple[float, ...] = ()
    """The return of each episode; of several agents, their mean."""
    agent_returns: Mapping[str, Any] = attrs.field(factory=dict)
    """With several agents, the return of each in each episode, arrays."""
    opponents: Mapping[str, str] = attrs.field(factory=dict)
    """The agents that others acted for, and who."""
    video: Path | None = None
    recorded: Path | None = None
    """The file that keeps the evaluation, if it was recorded."""
    recording: Path | None = None
    """The folder that has the episodes, if they were recorded as a log."""
    not_tracked: str = ""
    """Why an evaluation that was to be recorded is not in MLflow; empty if it is."""


def evaluate(
    run: str | Path,
    *,
    env: EnvMaker = "",
    checkpoint: str | int | Path = "best",
    episodes: int = 100,
    seed: int = 0,
    video: bool = False,
    registry: Registry | None = None,
    trust: bool = False,
    record: bool = False,
    console: Console | None = None,
    recording: Path | str | None = None,
    opponents: Mapping[str, str] | None = None,
) -> Evaluated:
    """Play greedy episodes that neither training nor its evaluations used.

    The same seed gives the same episodes for every policy. `env` is needed only for runs whose
    environment was a callable, and for those that learned from a log. A run that was not made here
    and names code to import, such as a wrapper, needs `trust=True`. With `record=True` the
    evaluation is kept with the run: as a file, and in MLflow as `later_eval/…` at the step of the
    checkpoint, or with opponents as `later_eval/opponents/…`. `console` shows how far it is.
    `recording` is a folder to record the episodes in, as a log. With several agents, `opponents`
    are those that others act for: `{"player_2": "random"}`, or a run, which acts greedily:
    `{"player_2": "RUN@STEP"}`.
    """
    console, opponents = console or Console(), dict(opponents or {})
    path = find_checkpoint(str(run), checkpoint)
    imports = (*OF_POLICY, "env", *(() if env else ("run.env",)))
    loaded = load_checkpoint(path, registry=registry, trust=trust, imports=imports)
    config, policy, manifest = loaded.prepared.config, loaded.policy, loaded.manifest
    modules = _assigned(loaded, opponents)
    if recording is not None and modules:
        raise RequestError(
            f"run {manifest.run_id} has several agents, and logs are of one.",
            "try: without recording the episodes",
        )
    normalize: Any = None
    if modules:
        load_other = partial(load_checkpoint, registry=registry, trust=trust)
        module, normalize = _agents_acting(policy, modules, opponents, load_other)
    else:
        module, scaling = policy.module, policy.normalization
        if scaling is not None:
            normalize = scaling.observations
    make, eval_seed = partial(_environments, loaded, env, modules), derive(seed, _PURPOSE)
    environment = describe_env(env) if env else loaded.saved.environment["name"]
    with ExitStack() as stack:
        stack.callback(console.close)
        file = None
        if video:
            # First, so that a video that cannot be recorded fails before the episodes are played.
            with console.activities.doing("recording a video"):
                file = record_video(
                    module,
                    partial(make, 1, render=True),
                    _new_video(path),
                    seed=eval_seed,
                    timestep=policy.step,
                    normalize=normalize,
                )
        evaluator = Evaluator(
            make,
            episodes=episodes,
            parallel=config.evaluation.parallel,
            seed=eval_seed,
            max_episode_steps=config.evaluation.max_episode_steps,
            step_timeout=config.sampling.step_timeout,
            record=None if recording is None else absolute_path(recording, "--record"),
            one_step=getattr(loaded.prepared.algorithm.plugin.feed(), "one_step_episodes", False),
        )
        stack.callback(evaluator.close)
        console.episodes_started(episodes, lambda: evaluator.played)
        with console.activities.doing("evaluating", lambda: evaluator.progress):
            metrics = evaluator.evaluate(module, policy.step, normalize)
    result = evaluator.result
    assert result is not None
    kept, reason = None, ""
    if record:
        facts = {
            "run_id": manifest.run_id,
            "checkpoint": path.name,
            "step": manifest.step,
            "environment": environment,
            "seed": seed,
            "episodes": episodes,
            "metrics": {name: x for name, x in metrics.items() if name.startswith("eval/")},
            "returns": result.returns.tolist(),
            "lengths": result.lengths.tolist(),
            "opponents": opponents,
        }
        folder = path.absolute().parent.parent
        kept, reason = keep_result(folder, EVALUATIONS, f"{path.name}-seed{seed}", facts)
    by_agent = () if not result.agents else result.agent_returns.T
    return Evaluated(
        run_id=manifest.run_id,
        step=manifest.step,
        checkpoint=path,
        metrics=metrics,
        environment=environment,
        returns=tuple(result.returns.tolist()),
        agent_returns=dict(zip(result.agents, by_agent, strict=True)),
        opponents=opponents,
        video=file,
        recorded=kept,
        recording=None if recording is None else Path(recording),
        not_tracked=reason,
    )


_PURPOSE = "evaluation of a tracked run"


def _assigned(loaded: Loaded, opponents: Mapping[str, str]) -> dict[str, str]:
    """Agent → module id, opponents with modules of their own; empty for a run of one agent."""
    modules = loaded.saved.environment.get("agents", {})
    if opponents and not modules:
        raise RequestError(
            f"run {loaded.manifest.run_id} has one agent: there are no opponents.",
            "try: without opponents",
        )
    for agent in opponents:
        if agent not in modules:
            guess = did_you_mean(agent, modules, sentence=True)
            raise RequestError(
                f"there is no agent {agent!r}. {guess}".rstrip(), f"agents: {', '.join(modules)}"
            )
    if opponents and len(opponents) == len(modules):
        raise RequestError("all agents are opponents.", "leave one of them out")
    return {**modules, **{agent: f"opponent {agent}" for agent in opponents}}


def _agents_acting(
    policy: Policy, assigned: Mapping[str, str], opponents: Mapping[str, str], load_other: Any
) -> tuple[Module, dict[str, Any]]:
    """The modules that act in the episodes, and what normalizes their observations."""
    assert isinstance(policy, AgentPolicy)
    modules: dict[str, Module] = {}
    normalize = {}
    for agent, module_id in assigned.items():
        own, opponent = policy.agents[agent], opponents.get(agent, "")
        if opponent == RANDOM:
            modules[module_id] = RandomModule(own.action_space)
            continue
        if opponent:
            other = load_other(find_checkpoint(opponent)).policy
            theirs = getattr(other, "agents", {}).get(agent)
            if theirs is None or (theirs.observation_space, theirs.action_space) != (
                own.observation_space,
                own.action_space,
            ):
                raise RequestError(
                    f"opponent {opponent!r} has no agent {agent!r} with the same spaces.",
                    "try: a run in the same environment",
                )
            own = theirs
        modules[module_id] = own.module
        if own.normalization is not None:
            normalize[module_id] = own.normalization.observations
    return AgentModules(modules), normalize


def _new_video(checkpoint: Path) -> Path:
    """A name that neither the run's own videos nor earlier ones of `eval` have."""
    folder = checkpoint.absolute().parent.parent / "videos"
    names = (f"eval-{checkpoint.name}{f'-{n}' if n > 1 else ''}.mp4" for n in itertools.count(1))
    return next(folder / name for name in names if not (folder / name).exists())


def _environments(
    loaded: Loaded,
    env: EnvMaker,
    agents: Mapping[str, str],
    num_envs: int,
    *,
    render: bool = False,
) -> Environments:
    """Environments like the training environments; refused if their spaces do not fit."""
    config, saved, run_id = loaded.prepared.config, loaded.saved, loaded.manifest.run_id
    environment = saved.environment
    if not env and not (environment["has_id"] and config.run.env):
        raise RequestError(
            f"run {run_id} learned in {environment['name']!r}, which has no id: it is a log, or "
            "was passed from Python.",
            "try: --env ID (in Python: env=…), or rlplug ope RUN --data FILE",
        )
    maker = env or config.run.env
    rendering = {"render_mode": "rgb_array"} if render else {}
    arguments = {**config.env.arguments, **environment["arguments"], **rendering}
    section = attrs.evolve(config.env, arguments=arguments)
    if bool(agents) != (game_maker(maker, arguments) is not None):
        here, there = ("several agents", "one") if agents else ("one agent", "several")
        raise RequestError(
            f"run {run_id} has {here}, and {describe_env(maker)!r} has {there}.",
            "try: an environment with the agents of the run",
        )
    made: Environments | None
    if agents:
        made = agent_environments(maker, num_envs, section, {}, agents=agents)
        assert made is not None
    else:
        made = make_environments(
            maker,
            num_envs,
            section,
            vectorization="sync" if render else config.sampling.vectorization,
            training=False,
            device=device_for_environments(config.compute),
        )
    different = []
    for kind, trained, given in (
        ("observations", saved.observation_space, made.vector.single_observation_space),
        ("actions", saved.action_space, made.vector.single_action_space),
    ):
        if outline(trained) != outline(given):
            different.append(f"{kind} are {describe(given)}, in training {describe(trained)}")
    if different:
        made.close()
        raise RequestError(
            f"environment {made.name!r} has other spaces than run {run_id} was trained in: "
            f"{'; '.join(different)}.",
            "try: an environment with the spaces of the run",
        )
    return made
