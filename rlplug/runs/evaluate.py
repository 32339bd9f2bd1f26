"""Evaluate a run that was tracked: its checkpoint plays fresh episodes."""

from __future__ import annotations

from pathlib import Path

import attrs

from rlplug.checkpoint import find_checkpoint
from rlplug.envs import Environments, EnvMaker, make_environments
from rlplug.errors import RequestError
from rlplug.evaluation import Evaluator
from rlplug.evaluation.video import record
from rlplug.registry import Registry
from rlplug.runs.loading import Loaded, load_checkpoint
from rlplug.seeding import derive

__all__ = ["Evaluated", "evaluate"]


@attrs.frozen(kw_only=True)
class Evaluated:
    """What a checkpoint earned."""

    run_id: str
    step: int
    """Environment steps that it was trained for."""
    checkpoint: Path
    metrics: dict[str, float]
    environment: str
    video: Path | None = None


def evaluate(
    run: str | Path,
    *,
    env: EnvMaker = "",
    checkpoint: str = "best",
    episodes: int = 100,
    seed: int = 0,
    video: bool = False,
    registry: Registry | None = None,
) -> Evaluated:
    """Let a checkpoint play episodes that neither training nor its evaluations have seen.

    The same seed gives the same episodes, whatever was trained. `env` is needed only for runs whose
    environment was a callable.
    """
    loaded = load_checkpoint(find_checkpoint(str(run), checkpoint), registry=registry)
    own = derive(seed, "evaluation of a tracked run")
    policy = loaded.policy
    see = None if policy.normalization is None else policy.normalization.observations
    # A video that cannot be made is known before the episodes are played.
    shown = None
    if video:
        folder = Path(str(loaded.path.parent.parent)) / "videos"
        shown = record(
            policy.module,
            lambda: _environments(loaded, env, 1, drawn=True),
            folder / f"{loaded.path.name}.mp4",
            seed=own,
            timestep=policy.step,
            normalize=see,
        )
    evaluator = Evaluator(
        lambda num_envs: _environments(loaded, env, num_envs),
        episodes=episodes,
        parallel=loaded.prepared.config.evaluation.parallel,
        seed=own,
    )
    try:
        metrics = evaluator.evaluate(policy.module, policy.step, see)
    finally:
        evaluator.close()
    return Evaluated(
        run_id=loaded.manifest.run_id,
        step=loaded.manifest.step,
        checkpoint=loaded.path,
        metrics=metrics,
        environment=loaded.saved.environment["name"],
        video=shown,
    )


def _environments(
    loaded: Loaded, env: EnvMaker, num_envs: int, *, drawn: bool = False
) -> Environments:
    """Environments like those that it was trained in."""
    config, environment = loaded.prepared.config, loaded.saved.environment
    if not env and not environment["has_id"]:
        raise RequestError(
            f"run {loaded.manifest.run_id} was trained in {environment['name']!r}, an environment "
            "that was given in Python.",
            "evaluate it there: rlplug.evaluate(run, env=...)",
        )
    drawing = {"render_mode": "rgb_array"} if drawn else {}
    arguments = {**config.env.arguments, **environment["arguments"], **drawing}
    return make_environments(
        env or config.run.env,
        num_envs,
        attrs.evolve(config.env, arguments=arguments),
        vectorization="sync" if drawn else config.sampling.vectorization,
        training=False,
    )
