"""Evaluate a checkpoint of a tracked run on fresh episodes."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path

import attrs

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.trust import refuse_foreign_imports
from rlplug.envs import Environments, EnvMaker, describe_env, make_environments
from rlplug.errors import RequestError
from rlplug.evaluation import Evaluator
from rlplug.evaluation.video import record as record_video
from rlplug.learner.device import device_for_environments
from rlplug.registry import Registry
from rlplug.runs.loading import Loaded, load_checkpoint
from rlplug.sampling.watchdog import Watchdog
from rlplug.seeding import derive
from rlplug.tracking.console import Console, SilentConsole
from rlplug.tracking.evaluations import LaterEvaluation, keep_evaluation

__all__ = ["Evaluated", "evaluate"]


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
    """The return of each episode."""
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
    checkpoint: str = "best",
    episodes: int = 100,
    seed: int = 0,
    video: bool = False,
    registry: Registry | None = None,
    trust: bool = False,
    record: bool = False,
    console: Console | None = None,
    recording: Path | str | None = None,
) -> Evaluated:
    """Play greedy episodes that neither training nor its evaluations used.

    The same seed gives the same episodes for every policy. `env` is needed only for runs whose
    environment was a callable, and for those that learned from a log. A run
    that was not made here and names code to import, such as a wrapper, needs `trust=True`. With
    `record=True` the evaluation is kept with the run: as a file, and in MLflow as `later_eval/…`
    at the step of the checkpoint. `console` shows how far it is. `recording` is a folder
    to record the episodes in, as a log.
    """
    console = console or SilentConsole()
    path = find_checkpoint(str(run), checkpoint)
    parts = ("algorithm", "addons", "env", *(() if env else ("run.env",)))
    refuse_foreign_imports(path, parts, trust=trust)
    loaded = load_checkpoint(path, registry=registry)
    arguments = loaded.saved.environment["arguments"]
    refuse_foreign_imports(path, (), trust=trust, arguments=arguments)
    eval_seed = derive(seed, "evaluation of a tracked run")
    policy = loaded.policy
    normalize = None if policy.normalization is None else policy.normalization.observations
    config = loaded.prepared.config
    with ExitStack() as stack:
        stack.callback(console.close)
        stack.enter_context(Watchdog(config.sampling.step_timeout))
        # First, so that a video that cannot be recorded fails before the episodes are played.
        file = None
        if video:
            with console.activities.doing("recording a video"):
                file = record_video(
                    policy.module,
                    lambda: _environments(loaded, env, 1, render=True),
                    _new_video(loaded.path),
                    seed=eval_seed,
                    timestep=policy.step,
                    normalize=normalize,
                )
        evaluator = Evaluator(
            lambda num_envs: _environments(loaded, env, num_envs),
            episodes=episodes,
            parallel=config.evaluation.parallel,
            seed=eval_seed,
            max_episode_steps=config.evaluation.max_episode_steps,
            record=None if recording is None else Path(recording).expanduser().absolute(),
            one_step=getattr(loaded.prepared.algorithm.plugin.feed(), "one_step_episodes", False),
        )
        stack.callback(evaluator.close)
        console.episodes_started(episodes, lambda: evaluator.played)
        with console.activities.doing("evaluating", lambda: evaluator.progress):
            metrics = evaluator.evaluate(policy.module, policy.step, normalize)
        assert evaluator.result is not None
        returns, lengths = evaluator.result.returns.tolist(), evaluator.result.lengths.tolist()
    kept, reason = None, ""
    if record:
        folder = loaded.path.absolute().parent.parent
        later = LaterEvaluation(
            run_id=loaded.manifest.run_id,
            checkpoint=loaded.path.name,
            step=loaded.manifest.step,
            environment=describe_env(env) if env else loaded.saved.environment["name"],
            seed=seed,
            episodes=episodes,
            metrics={name: x for name, x in metrics.items() if name.startswith("eval/")},
            returns=returns,
            lengths=lengths,
        )
        kept, reason = keep_evaluation(later, folder)
    return Evaluated(
        run_id=loaded.manifest.run_id,
        step=loaded.manifest.step,
        checkpoint=loaded.path,
        metrics=metrics,
        environment=describe_env(env) if env else loaded.saved.environment["name"],
        returns=tuple(returns),
        video=file,
        recorded=kept,
        recording=None if recording is None else Path(recording),
        not_tracked=reason,
    )


def _new_video(checkpoint: Path) -> Path:
    """A name that neither the run's own videos nor earlier ones of `eval` have."""
    folder = checkpoint.absolute().parent.parent / "videos"
    names = (f"eval-{checkpoint.name}{f'-{n}' if n > 1 else ''}.mp4" for n in itertools.count(1))
    return next(folder / name for name in names if not (folder / name).exists())


def _environments(
    loaded: Loaded, env: EnvMaker, num_envs: int, *, render: bool = False
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
    return make_environments(
        env or config.run.env,
        num_envs,
        attrs.evolve(config.env, arguments=arguments),
        vectorization="sync" if render else config.sampling.vectorization,
        training=False,
        device=device_for_environments(config.compute),
    )
