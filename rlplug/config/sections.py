"""The options of the core: one frozen class per section of a run's TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlplug.config.checkpointing import CheckpointSection
from rlplug.config.compute import ComputeSection
from rlplug.config.evaluation import EvaluationSection
from rlplug.config.learning import LearnerSection
from rlplug.config.option import at_least, between, not_empty, one_of, option

__all__ = [
    "CORE_SECTIONS",
    "EnvSection",
    "RunConfig",
    "RunSection",
    "SamplingSection",
    "TrackingSection",
]


@attrs.frozen(kw_only=True)
class RunSection:
    """What is run."""

    algorithm: str = option("", "Name of the algorithm, as in --algo.", not_empty)
    env: str = option("", "Id of the environment; empty: the algorithm's own default.")
    addons: tuple[str, ...] = option((), "Names of the add-ons that take part, in order.")
    seed: int = option(0, "Seed that all random numbers of the run grow from.", at_least(0))
    steps: int = option(
        100_000, "Environment steps to take, summed over environments.", at_least(1)
    )
    preset: str = option("", "Options that the algorithm names, as in --preset; empty: none.")
    init_from: str = option(
        "", "Run (id, name or folder) whose weights the modules start with, as in --init-from."
    )


@attrs.frozen(kw_only=True)
class EnvSection:
    """How the environment is made, and what is seen of it."""

    wrappers: tuple[str, ...] = option(
        (), "Wrappers by import path, 'package.module:Class', the innermost first."
    )
    atari: bool = option(
        False,
        "Atari: random no-ops, fire, every 4th frame, greyscale of 84 × 84 (needs rlplug[atari]).",
    )
    episodic_life: bool = option(
        True, "Atari: in training a lost life ends an episode; the game goes on all the same."
    )
    time_feature: bool = option(
        False, "Append to observations the share of time that is left until the time limit."
    )
    frame_stack: int = option(
        1, "Observe the last so many observations at once, the newest last.", at_least(1)
    )
    normalize_observation: bool = option(
        False, "Bring observations to mean 0 and spread 1, by statistics of this run."
    )
    normalize_reward: bool = option(False, "Divide rewards by the spread of discounted returns.")
    normalize_clip: float = option(
        10.0, "Bound of what is normalised; 0: without bound.", at_least(0)
    )
    normalize_gamma: float = option(
        0.99, "Discount of the returns whose spread normalises rewards.", between(0, 1)
    )
    reward_clip: float = option(
        0.0, "Learn from rewards clipped to ± this; 0: as they are.", at_least(0)
    )
    arguments: Mapping[str, Any] = option(
        dict,
        "Every other key of [env]: an argument of the environment's constructor.",
        factory=True,
        rest=True,
    )


@attrs.frozen(kw_only=True)
class SamplingSection:
    """How experience is collected."""

    num_envs: int = option(1, "Environments that are stepped together.", at_least(1))
    vectorization: str = option(
        "auto",
        "native (the environment's own vector form), sync (in turn), or auto: native where it "
        "resets in the same step, or from 16 environments on.",
        one_of(("auto", "native", "sync")),
    )


@attrs.frozen(kw_only=True)
class TrackingSection:
    """Where a run is recorded."""

    enabled: bool = option(True, "Record the run in MLflow; false never imports mlflow.")
    uri: str = option(
        "",
        "MLflow tracking URI; empty: MLFLOW_TRACKING_URI, else mlflow.db in the folder of runs.",
    )
    experiment: str = option(
        "", "MLflow experiment; empty: MLFLOW_EXPERIMENT_NAME, else rlplug/<environment>."
    )
    run_name: str = option("", "Name of the run; empty: <algorithm>-<environment>-s<seed>.")
    tags: Mapping[str, str] = option(dict, "Tags of the run, as --tag KEY=VALUE.", factory=True)


@attrs.frozen(kw_only=True)
class RunConfig:
    """All options of one run, each with the value that holds."""

    run: RunSection
    algorithm: Any
    """The algorithm's own `Config`."""
    addons: Mapping[str, Any] = attrs.field(factory=dict)
    """Each add-on's own `Config`, by name, in order."""
    env: EnvSection = attrs.field(factory=EnvSection)
    sampling: SamplingSection = attrs.field(factory=SamplingSection)
    learner: LearnerSection = attrs.field(factory=LearnerSection)
    compute: ComputeSection = attrs.field(factory=ComputeSection)
    evaluation: EvaluationSection = attrs.field(factory=EvaluationSection)
    checkpoint: CheckpointSection = attrs.field(factory=CheckpointSection)
    tracking: TrackingSection = attrs.field(factory=TrackingSection)


CORE_SECTIONS: dict[str, type[Any]] = {
    "run": RunSection,
    "env": EnvSection,
    "sampling": SamplingSection,
    "learner": LearnerSection,
    "compute": ComputeSection,
    "evaluation": EvaluationSection,
    "checkpoint": CheckpointSection,
    "tracking": TrackingSection,
}
"""The core's sections by name, in the order in which they are written."""
