"""Evaluate a checkpoint of a tracked run on fresh episodes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.trust import OF_POLICY
from rlplug.durable import absolute_path
from rlplug.envs import Environments, EnvMaker, describe_env, make_environments
from rlplug.envs.agents import agent_environments, game_maker
from rlplug.errors import RequestError, did_you_mean
from rlplug.evaluation import EvaluationResult, Evaluator
from rlplug.evaluation.agents import AgentModules, RandomModule
from rlplug.evaluation.video import record as record_video
from rlplug.learner.device import device_for_environments
from rlplug.plugin import Module
from rlplug.registry import Registry
from rlplug.runs.loading import Loaded, load_checkpoint
from rlplug.sampling.watchdog import Watchdog
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
    console = console or Console()
    opponents = opponents or {}
    path = find_checkpoint(str(run), checkpoint)
    imports = (*OF_POLICY, "env", *(() if env else ("run.env",)))
    loaded = load_checkpoint(path, registry=registry, trust=trust, imports=imports)
    eval_seed = derive(seed, "evaluation of a tracked run")
    policy = loaded.policy
    module, normalize = _acting(loaded, opponents, registry, trust=trust)
    if recording is not None and isinstance(policy, AgentPolicy):
        raise RequestError(
            f"run {loaded.manifest.run_id} has several agents, and logs are of one.",
            "try: without recording the episodes",
        )
    config = loaded.prepared.config
    with ExitStack() as stack:
        stack.callback(console.close)
        stack.enter_context(Watchdog(config.sampling.step_timeout))
        # First, so that a video that cannot be recorded fails before the episodes are played.
        file = None
        if video:
            if env:
                # What does not fit the run is no matter of the video.
                _environments(loaded, env, 1, opponents).close()
            with console.activities.doing("recording a video"):
                file = record_video(
                    module,
                    lambda: _environments(loaded, env, 1, opponents, render=True),
                    _new_video(loaded.path),
                    seed=eval_seed,
                    timestep=policy.step,
                    normalize=normalize,
                )
        evaluator = Evaluator(
            lambda num_envs: _environments(loaded, env, num_envs, opponents),
            episodes=episodes,
            parallel=config.evaluation.parallel,
            seed=eval_seed,
            max_episode_steps=config.evaluation.max_episode_steps,
            record=None if recording is None else absolute_path(recording, "--record"),
            one_step=getattr(loaded.prepared.algorithm.plugin.feed(), "one_step_episodes", False),
        )
        stack.callback(evaluator.close)
        console.episodes_started(episodes, lambda: evaluator.played)
        with console.activities.doing("evaluating", lambda: evaluator.progress):
            metrics = evaluator.evaluate(module, policy.step, normalize)
        assert evaluator.result is not None
        returns, lengths = evaluator.result.returns.tolist(), evaluator.result.lengths.tolist()
    kept, reason = None, ""
    if record:
        folder = loaded.path.absolute().parent.parent
        facts = {
            "run_id": loaded.manifest.run_id,
            "checkpoint": loaded.path.name,
            "step": loaded.manifest.step,
            "environment": describe_env(env) if env else loaded.saved.environment["name"],
            "seed": seed,
            "episodes": episodes,
            "metrics": {name: x for name, x in metrics.items() if name.startswith("eval/")},
            "returns": returns,
            "lengths": lengths,
            "opponents": dict(opponents),
        }
        kept, reason = keep_result(folder, EVALUATIONS, f"{loaded.path.name}-seed{seed}", facts)
    return Evaluated(
        run_id=loaded.manifest.run_id,
        step=loaded.manifest.step,
        checkpoint=loaded.path,
        metrics=metrics,
        environment=describe_env(env) if env else loaded.saved.environment["name"],
        returns=tuple(returns),
        agent_returns=_by_agent(evaluator.result),
        opponents=opponents,
        video=file,
        recorded=kept,
        recording=None if recording is None else Path(recording),
        not_tracked=reason,
    )


def _by_agent(result: EvaluationResult) -> dict[str, Any]:
    if not result.agents:
        return {}
    return dict(zip(result.agents, result.agent_returns.T, strict=True))


def _acting(
    loaded: Loaded, opponents: Mapping[str, str], registry: Registry | None, *, trust: bool
) -> tuple[Module, Any]:
    """What acts in the episodes, and what normalizes its observations."""
    policy = loaded.policy
    if not isinstance(policy, AgentPolicy):
        if opponents:
            raise RequestError(
                f"run {loaded.manifest.run_id} has one agent: there are no opponents.",
                "try: without opponents",
            )
        scaling = policy.normalization
        return policy.module, None if scaling is None else scaling.observations
    modules: dict[str, Module] = {}
    normalize = {}
    for agent, module_id in _assigned(loaded, opponents).items():
        own, opponent = policy.agents[agent], opponents.get(agent, "")
        if opponent == RANDOM:
            modules[module_id] = RandomModule(own.action_space)
            continue
        if opponent:
            own = _opponent(opponent, agent, own, registry, trust=trust)
        modules[module_id] = own.module
        if own.normalization is not None:
            normalize[module_id] = own.normalization.observations
    return AgentModules(modules), normalize


def _opponent(
    run: str, agent: str, own: Policy, registry: Registry | None, *, trust: bool
) -> Policy:
    """The policy that another run, or another checkpoint, has for an agent."""
    try:
        path = find_checkpoint(run)
    except RequestError as error:
        raise RequestError(
            f"unknown opponent {run!r}: {error.message}",
            f"try: {agent}={RANDOM}, or {agent}=RUN@STEP",
        ) from error
    policy = load_checkpoint(path, registry=registry, trust=trust).policy
    if not isinstance(policy, AgentPolicy) or agent not in policy.agents:
        raise RequestError(
            f"opponent {run!r} has no agent {agent!r}.", "try: a run in the same environment"
        )
    found = policy.agents[agent]
    for kind in ("observation_space", "action_space"):
        here, there = getattr(own, kind), getattr(found, kind)
        if here != there:
            raise RequestError(
                f"opponent {run!r} has another {kind.replace('_', ' ')} for agent {agent!r}: "
                f"{there}; here it is {here}.",
                "try: a run in the same environment",
            )
    return found


def _assigned(loaded: Loaded, opponents: Mapping[str, str]) -> dict[str, str]:
    """Agent → module id; opponents have modules of their own."""
    policy = loaded.policy
    assert isinstance(policy, AgentPolicy)
    for agent in opponents:
        if agent not in policy.modules:
            guess = did_you_mean(agent, policy.modules, sentence=True)
            raise RequestError(
                f"there is no agent {agent!r}. {guess}".rstrip(),
                f"agents: {', '.join(policy.modules)}",
            )
    if len(opponents) == len(policy.modules):
        raise RequestError("all agents are opponents.", "leave one of them out")
    return {**policy.modules, **{agent: f"opponent {agent}" for agent in opponents}}


def _new_video(checkpoint: Path) -> Path:
    """A name that neither the run's own videos nor earlier ones of `eval` have."""
    folder = checkpoint.absolute().parent.parent / "videos"
    names = (f"eval-{checkpoint.name}{f'-{n}' if n > 1 else ''}.mp4" for n in itertools.count(1))
    return next(folder / name for name in names if not (folder / name).exists())


def _environments(
    loaded: Loaded,
    env: EnvMaker,
    num_envs: int,
    opponents: Mapping[str, str],
    *,
    render: bool = False,
) -> Environments:
    """Environments like the training environments."""
    config, environment = loaded.prepared.config, loaded.saved.environment
    if not env and not environment["has_id"]:
        raise RequestError(
            f"run {loaded.manifest.run_id} was trained in {environment['name']!r}, an environment "
            "that was passed from Python.",
            "try: rlplug.evaluate(run, env=...) in Python",
        )
    if not env and not config.run.env:
        raise RequestError(
            f"run {loaded.manifest.run_id} learned from a log, without an environment.",
            "try: rlplug eval RUN --env ID, or rlplug ope RUN --data FILE",
        )
    rendering = {"render_mode": "rgb_array"} if render else {}
    arguments = {**config.env.arguments, **environment["arguments"], **rendering}
    section = attrs.evolve(config.env, arguments=arguments)
    if isinstance(loaded.policy, AgentPolicy):
        games = agent_environments(
            env or config.run.env, num_envs, section, {}, agents=_assigned(loaded, opponents)
        )
        if games is None:
            raise RequestError(
                f"run {loaded.manifest.run_id} has several agents, and "
                f"{describe_env(env or config.run.env)!r} has one.",
                "try: an environment with the agents of the run",
            )
        return _with_spaces_of(loaded, games)
    if env and game_maker(env, arguments) is not None:
        raise RequestError(
            f"run {loaded.manifest.run_id} has one agent, and {describe_env(env)!r} has several.",
            "try: an environment with one agent",
        )
    return _with_spaces_of(
        loaded,
        make_environments(
            env or config.run.env,
            num_envs,
            section,
            vectorization="sync" if render else config.sampling.vectorization,
            training=False,
            device=device_for_environments(config.compute),
        ),
    )


def _with_spaces_of(loaded: Loaded, made: Environments) -> Environments:
    """The environments, refused if their spaces do not fit what the run was trained in."""
    saved, agents = loaded.saved, loaded.saved.environment.get("agents", {})
    different = []
    for kind, there, here in (
        ("observations", saved.observation_space, made.vector.single_observation_space),
        ("actions", saved.action_space, made.vector.single_action_space),
    ):
        for agent in agents or [""]:
            trained, now = (there[agent], here[agent]) if agents else (there, here)  # type: ignore[index] # Dict spaces by agent
            if outline(trained) != outline(now):
                named = f"{kind} of {agent}" if agents else kind
                different.append(f"{named} are {describe(now)}, in training {describe(trained)}")
    if different:
        made.close()
        raise RequestError(
            f"environment {made.name!r} has other spaces than run {loaded.manifest.run_id} was "
            f"trained in: {'; '.join(different)}.",
            "try: an environment with the spaces of the run",
        )
    return made
