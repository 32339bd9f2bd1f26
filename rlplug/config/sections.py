"""The options of the core: one frozen class per section of a run's TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import attrs

from rlplug.config.compute_section import ComputeSection
from rlplug.config.condition import condition_problem
from rlplug.config.data_section import DataSection
from rlplug.config.league_section import LeagueSection
from rlplug.config.module_section import ModuleSection
from rlplug.config.option import (
    above,
    at_least,
    between,
    changed,
    no_effect,
    not_empty,
    one_of,
    option,
    refuse,
)
from rlplug.config.sampling_section import SamplingSection
from rlplug.config.scale_section import ScaleSection

__all__ = [
    "CORE_SECTIONS",
    "CheckpointSection",
    "ComputeSection",
    "DataSection",
    "EnvSection",
    "EvaluationSection",
    "LeagueSection",
    "LearnerSection",
    "ModuleSection",
    "ProfilerSection",
    "RunConfig",
    "RunSection",
    "SamplingSection",
    "ScaleSection",
    "TrackingSection",
]


@attrs.frozen(kw_only=True)
class RunSection:
    """The algorithm, the environment and the length of the run."""

    algorithm: str = option("", "Name of the algorithm, as in --algo.", not_empty)
    env: str = option("", "Gymnasium id of the environment; empty: the algorithm's default.")
    addons: tuple[str, ...] = option((), "Names of the add-ons to use, in call order.")
    seed: int = option(0, "Seed of every random number generator of the run.", at_least(0))
    steps: int = option(100_000, "Environment steps in all, over all environments.", at_least(1))
    max_updates: int = option(0, "End the run after this many updates; 0 disables.", at_least(0))
    max_episodes: int = option(0, "End the run after this many episodes; 0 disables.", at_least(0))
    max_minutes: float = option(
        0.0, "End the run after this many minutes, all parts counted; 0 disables.", at_least(0)
    )
    stop_when: str = option(
        "", "End the run once 'eval/return_mean >= 475' or the like holds.", condition_problem
    )
    preset: str = option("", "Named set of options of the algorithm, as in --preset; empty: none.")
    init_from: str = option("", "Run to load initial weights from: id, name, best:ENV, RUN@STEP.")
    init_strict: bool = option(
        True, "Refuse init_from if its weights do not all fit; false: load those that do, and warn."
    )

    def __attrs_post_init__(self) -> None:
        if not (self.init_strict or self.init_from):
            raise ValueError("init_strict = false would have no effect without init_from")


@attrs.frozen(kw_only=True)
class EnvSection:
    """Environment construction, wrappers and normalization."""

    wrappers: tuple[str, ...] = option((), "Wrappers, as 'package.module:Class', innermost first.")
    atari: bool = option(
        False, "Apply Atari preprocessing: 84 × 84 grayscale, frame skip 4 … (needs rlplug[atari])."
    )
    episodic_life: bool = option(True, "Atari: a lost life ends the training episode.")
    time_feature: bool = option(False, "Append the remaining time to the observation.")
    frame_stack: int = option(1, "Observations to stack, newest last.", at_least(1))
    normalize_observation: bool = option(False, "Normalize observations by running statistics.")
    normalize_reward: bool = option(False, "Divide rewards by the running deviation of returns.")
    normalize_clip: float = option(
        10.0, "Clip what is normalized to ± this; 0 disables.", at_least(0)
    )
    normalize_gamma: float = option(0.99, "Discount factor of normalize_reward.", between(0, 1))
    reward_clip: float = option(0.0, "Clip training rewards to ± this; 0 disables.", at_least(0))
    arguments: Mapping[str, Any] = option(
        dict,
        "Any other key of [env] is passed to the environment's constructor.",
        factory=True,
        rest=True,
    )


@attrs.frozen(kw_only=True)
class LearnerSection:
    """Gradient clipping, non-finite gradients, and accumulation."""

    max_grad_norm: float = option(
        0.0, "Clip gradients (see clip_by) to this; 0 disables.", at_least(0)
    )
    clip_by: str = option(
        "global_norm",
        "Clip by the norm of all gradients, of each tensor, or by value.",
        one_of(("global_norm", "norm", "value")),
    )
    clip_over: str = option(
        "optimizer",
        "global_norm: of each optimizer, or of all in the module that act together.",
        one_of(("optimizer", "module")),
    )
    norm_type: float = option(2.0, "Type of the p-norm; inf: the largest.", above(0), infinite=True)
    nonfinite: str = option(
        "skip",
        "NaN or inf gradients: skip the step, set them to zero, or stop the run.",
        one_of(("skip", "zero", "stop")),
    )
    on_divergence: str = option(
        "warn",
        "Weights not finite, or 100 updates without a step: warn once, or stop (fail).",
        one_of(("warn", "stop")),
    )
    balance_grad_norms: bool = option(
        False, "Scale loss terms' gradients to equal norms (a backward pass per term)."
    )
    accumulate: int = option(
        1, "Minibatches to accumulate gradients over before a step.", at_least(1)
    )
    optimizers: str = option(
        "together",
        "A module's optimizers share gradients, or act in turn, each with its own.",
        one_of(("together", "in_turn")),
    )
    cycle_minibatches: bool = option(
        False, "Repeat the minibatches of modules with few rows while those of others last."
    )
    modules_to_train: tuple[str, ...] = option(
        ("*",), "Several agents: ids of the modules to train, or patterns.", not_empty
    )
    trace_hooks: bool = option(
        False, "Report each hook's seconds and effect on gradient norms, as hooks/PLUGIN/…."
    )


@attrs.frozen(kw_only=True)
class EvaluationSection:
    """Evaluation with greedy episodes in separate environments, and early stop."""

    every: int = option(
        0, "Steps between evaluations; 0: at the end. Unset: run.steps / 10.", at_least(0)
    )
    episodes: int = option(
        10, "Episodes per evaluation; 0 disables. Unset: 0 for one-step episodes.", at_least(0)
    )
    parallel: int = option(10, "Number of evaluation episodes played in parallel.", at_least(1))
    max_episode_steps: int = option(
        1_000_000, "Cut off episodes after this many steps.", at_least(1)
    )
    stop_at_return: float = option(float("inf"), "Stop at this mean return; inf: never.")
    patience: int = option(
        0, "Stop after this many evaluations without improvement; 0 disables.", at_least(0)
    )
    video: bool = option(False, "Record a video of the best evaluation and of the last step.")

    def __attrs_post_init__(self) -> None:
        if not self.episodes:
            idle = changed(self, ("stop_at_return", "patience", "video"))
            refuse(no_effect(idle, "with episodes = 0, which disables evaluation"))


@attrs.frozen(kw_only=True)
class CheckpointSection:
    """How often checkpoints are saved, in addition to best evaluations and the end of the run."""

    every: int = option(0, "Environment steps between checkpoints; 0 disables.", at_least(0))
    updates: int = option(0, "Updates between checkpoints; 0 disables.", at_least(0))
    minutes: float = option(5.0, "Maximum minutes between checkpoints; 0 disables.", at_least(0))
    save_environments: bool = option(
        True, "Pickle the environments; false: a resumed run starts new episodes."
    )
    keep: int = option(2, "Number of latest checkpoints to keep, besides the best.", at_least(1))
    keep_best: int = option(1, "Best evaluations to keep checkpoints of.", at_least(1))
    keep_every: int = option(0, "Keep the first after each multiple of this; 0: none.", at_least(0))
    save_replay: bool = option(
        True, "Save the replay buffer, twice its size on disk; false: resume with an empty one."
    )
    upload_replay: bool = option(False, "Upload the saved replay buffer to MLflow, too.")


@attrs.frozen(kw_only=True)
class TrackingSection:
    """MLflow tracking."""

    enabled: bool = option(True, "Record the run in MLflow; false does not import mlflow at all.")
    uri: str = option("", "MLflow URI; empty: MLFLOW_TRACKING_URI, or the runs folder.")
    offline_ok: bool = option(False, "Start although the server does not answer.")
    experiment: str = option("", "Experiment; empty: rlplug/<environment>.")
    run_name: str = option("", "Run name; empty: <algorithm>-<environment>-s<seed>.")
    tags: Mapping[str, str] = option(dict, "Tags of the run, as --tag KEY=VALUE.", factory=True)
    system_metrics: str = option(
        "auto",
        "CPU, memory and GPU use: on, off, once; auto: on a GPU.",
        one_of(("auto", "on", "off", "once")),
    )
    system_interval: float = option(10.0, "Seconds between system metrics.", at_least(0.1))
    git_diff: bool = option(True, "Record what differs from the last commit, up to 1 MB.")


@attrs.frozen(kw_only=True)
class ProfilerSection:
    """Traces of some iterations with torch's profiler; --profile enables it.

    An iteration is a collection of experience with its updates; those without updates count with
    the next one that has some.
    """

    enabled: bool = option(False, "Write a trace and a table of operators, as --profile does.")
    skip_first: int = option(2, "Iterations to skip at the start.", at_least(0))
    wait: int = option(0, "Iterations to skip before each trace.", at_least(0))
    warmup: int = option(1, "Iterations traced and left out.", at_least(0))
    active: int = option(3, "Iterations of each trace.", at_least(1))
    repeat: int = option(1, "Number of traces; 0: one after the other until the end.", at_least(0))
    record_shapes: bool = option(False, "Record the shapes of operators' inputs.")
    profile_memory: bool = option(False, "Record what operators allocate and free.")
    with_stack: bool = option(False, "Record the Python calls, also of NumPy's work, for 0.1 s.")
    with_flops: bool = option(False, "Estimate the FLOPs of matrix products and convolutions.")
    with_modules: bool = option(False, "Record the hierarchy of modules (TorchScript only).")
    table_size: int = option(20, "Number of operators in the table.", at_least(1))


@attrs.frozen(kw_only=True)
class RunConfig:
    """All options of one run, resolved."""

    run: RunSection
    algorithm: Any
    """The algorithm's own `Config`."""
    addons: Mapping[str, Any] = attrs.field(factory=dict)
    """Each add-on's own `Config`, by name, in order."""
    modules: Mapping[str, ModuleSection] = attrs.field(factory=dict)
    """The modules of a run with several agents, by id; none: agents with equal spaces share one."""
    env: EnvSection = attrs.field(factory=EnvSection)
    data: DataSection = attrs.field(factory=DataSection)
    sampling: SamplingSection = attrs.field(factory=SamplingSection)
    learner: LearnerSection = attrs.field(factory=LearnerSection)
    compute: ComputeSection = attrs.field(factory=ComputeSection)
    evaluation: EvaluationSection = attrs.field(factory=EvaluationSection)
    checkpoint: CheckpointSection = attrs.field(factory=CheckpointSection)
    tracking: TrackingSection = attrs.field(factory=TrackingSection)
    profiler: ProfilerSection = attrs.field(factory=ProfilerSection)
    scale: ScaleSection = attrs.field(factory=ScaleSection)
    league: LeagueSection = attrs.field(factory=LeagueSection)


_OF_PLUGINS = ("algorithm", "addons", "modules")

CORE_SECTIONS: dict[str, type[Any]] = {
    name: kind for name, kind in get_type_hints(RunConfig).items() if name not in _OF_PLUGINS
}
"""The core's sections by name, in the order in which they are written."""
