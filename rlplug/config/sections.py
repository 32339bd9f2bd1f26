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
    steps: int = option(
        100_000, "Total number of environment steps, over all environments.", at_least(1)
    )
    max_updates: int = option(
        0, "End the run after this many updates of the learner; 0 disables.", at_least(0)
    )
    max_episodes: int = option(
        0, "End the run after this many training episodes; 0 disables.", at_least(0)
    )
    max_minutes: float = option(
        0.0,
        "End the run after this many minutes, evaluations and earlier parts of a resumed run "
        "included; 0 disables.",
        at_least(0),
    )
    stop_when: str = option(
        "",
        "End the run once a reported metric reaches a value: 'eval/return_mean >= 475', "
        "'train/loss < 0.1'; empty disables.",
        condition_problem,
    )
    preset: str = option("", "Named set of options of the algorithm, as in --preset; empty: none.")
    init_from: str = option(
        "", "Run to load initial weights from, as in --init-from: id, name, best:ENV, RUN@STEP."
    )
    init_strict: bool = option(
        True,
        "Refuse weights of init_from that do not all fit; false: load those that fit, and "
        "name the others in a warning.",
    )

    def __attrs_post_init__(self) -> None:
        if not (self.init_strict or self.init_from):
            raise ValueError("init_strict = false would have no effect without init_from")


@attrs.frozen(kw_only=True)
class EnvSection:
    """Environment construction, wrappers and normalization."""

    wrappers: tuple[str, ...] = option(
        (), "Wrappers to apply, as 'package.module:Class', innermost first."
    )
    atari: bool = option(
        False,
        "Apply Atari preprocessing: no-op resets, fire on reset, frame skip 4, 84 × 84 "
        "grayscale (needs rlplug[atari]).",
    )
    episodic_life: bool = option(
        True, "Atari: end the training episode on loss of life, without resetting the game."
    )
    time_feature: bool = option(
        False, "Append the elapsed fraction of the time limit to the observation."
    )
    frame_stack: int = option(
        1, "Number of consecutive observations to stack, newest last.", at_least(1)
    )
    normalize_observation: bool = option(
        False, "Normalize observations to mean 0 and standard deviation 1 by running statistics."
    )
    normalize_reward: bool = option(
        False, "Divide rewards by the running standard deviation of the discounted return."
    )
    normalize_clip: float = option(
        10.0, "Clip normalized observations and rewards to ± this; 0 disables.", at_least(0)
    )
    normalize_gamma: float = option(
        0.99, "Discount factor of the return used by normalize_reward.", between(0, 1)
    )
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
        0.0, "Maximum gradient norm (or absolute value, see clip_by); 0 disables.", at_least(0)
    )
    clip_by: str = option(
        "global_norm",
        "Clip by the norm over all gradients (global_norm), per tensor (norm), or by value.",
        one_of(("global_norm", "norm", "value")),
    )
    clip_over: str = option(
        "optimizer",
        "Compute global_norm over each optimizer's parameters, or over those of all in the "
        "module that act together; in turn, each acts by itself.",
        one_of(("optimizer", "module")),
    )
    norm_type: float = option(
        2.0, "Type of the p-norm; inf for the infinity norm.", above(0), infinite=True
    )
    nonfinite: str = option(
        "skip",
        "On NaN or inf gradients: skip the optimizer step, set them to zero, or stop the run "
        "and name the loss term.",
        one_of(("skip", "zero", "stop")),
    )
    on_divergence: str = option(
        "warn",
        "If weights are not finite, or non-finite gradients have kept them from moving for "
        "100 updates: warn once, or stop (the run fails).",
        one_of(("warn", "stop")),
    )
    balance_grad_norms: bool = option(
        False, "Scale the loss terms' gradients to equal norms; costs one backward pass per term."
    )
    accumulate: int = option(
        1, "Minibatches of one update to accumulate gradients over before each step.", at_least(1)
    )
    optimizers: str = option(
        "together",
        "Several optimizers of a module act on the same gradients (together), or one after "
        "the other, each with a forward pass and loss of its own (in_turn).",
        one_of(("together", "in_turn")),
    )
    cycle_minibatches: bool = option(
        False,
        "Repeat the minibatches of modules with few rows, shuffled again, while those of "
        "others last.",
    )
    modules_to_train: tuple[str, ...] = option(
        ("*",),
        "With several agents: ids of the modules to train, or patterns; the others only act.",
        not_empty,
    )
    trace_hooks: bool = option(
        False,
        "Report the seconds of each plugin's hooks, and gradient norms before and after each "
        "postprocess_gradients, as hooks/PLUGIN/…; as --trace-hooks.",
    )


@attrs.frozen(kw_only=True)
class EvaluationSection:
    """Evaluation with greedy episodes in separate environments, and early stop."""

    every: int = option(
        0,
        "Environment steps between evaluations; 0: only at the end. Unset: a tenth of run.steps.",
        at_least(0),
    )
    episodes: int = option(
        10,
        "Episodes per evaluation; 0 disables. Unset: 0 for one-step episodes, unless another "
        "option of [evaluation] is set.",
        at_least(0),
    )
    parallel: int = option(10, "Number of evaluation episodes played in parallel.", at_least(1))
    max_episode_steps: int = option(
        1_000_000,
        "Cut off evaluation episodes after this many steps; their returns so far count.",
        at_least(1),
    )
    stop_at_return: float = option(
        float("inf"), "Stop training once the mean return reaches this; inf disables."
    )
    patience: int = option(
        0,
        "Stop after this many consecutive evaluations without improvement; 0 disables.",
        at_least(0),
    )
    video: bool = option(False, "Record a video of the best evaluation and of the last step.")

    def __attrs_post_init__(self) -> None:
        if not self.episodes:
            idle = changed(self, ("stop_at_return", "patience", "video"))
            refuse(no_effect(idle, "with episodes = 0, which disables evaluation"))


@attrs.frozen(kw_only=True)
class CheckpointSection:
    """How often checkpoints are saved, in addition to best evaluations and the end of the run."""

    every: int = option(
        0, "Environment steps between checkpoints; 0: by time only (see minutes).", at_least(0)
    )
    updates: int = option(0, "Updates between checkpoints; 0 disables.", at_least(0))
    minutes: float = option(5.0, "Maximum minutes between checkpoints; 0 disables.", at_least(0))
    save_environments: bool = option(
        True,
        "Save environments that can be pickled; otherwise a resumed run starts new episodes. "
        "Such a pickle is read only by rlplug resume, of runs in the runs folder.",
    )
    keep: int = option(2, "Number of latest checkpoints to keep, besides the best.", at_least(1))
    keep_best: int = option(
        1, "Number of checkpoints to keep that have the best evaluations.", at_least(1)
    )
    keep_every: int = option(
        0, "Steps of which the first checkpoint after each is kept for ever; 0: none.", at_least(0)
    )
    save_replay: bool = option(
        True,
        "Save the replay buffer with the latest checkpoints, in about twice its size on disk;"
        " false: a resumed run starts with an empty one.",
    )
    upload_replay: bool = option(False, "Upload the saved replay buffer to MLflow, too.")


@attrs.frozen(kw_only=True)
class TrackingSection:
    """MLflow tracking."""

    enabled: bool = option(True, "Record the run in MLflow; false does not import mlflow at all.")
    uri: str = option(
        "", "MLflow tracking URI; empty: MLFLOW_TRACKING_URI, else mlflow.db in the runs folder."
    )
    offline_ok: bool = option(
        False,
        "Start and resume also if the server does not answer; `rlplug runs sync` uploads the run.",
    )
    experiment: str = option(
        "", "MLflow experiment; empty: MLFLOW_EXPERIMENT_NAME, else rlplug/<environment>."
    )
    run_name: str = option("", "Run name; empty: <algorithm>-<environment>-s<seed>.")
    tags: Mapping[str, str] = option(dict, "Tags of the run, as --tag KEY=VALUE.", factory=True)
    system_metrics: str = option(
        "auto",
        "CPU, memory and GPU use: on, off, once, or auto, which is on when a GPU is used.",
        one_of(("auto", "on", "off", "once")),
    )
    system_interval: float = option(10.0, "Seconds between system metrics.", at_least(0.1))
    git_diff: bool = option(
        True, "Record what differs from the last commit of the working folder, up to 1 MB."
    )


@attrs.frozen(kw_only=True)
class ProfilerSection:
    """Traces of some iterations with torch's profiler; --profile enables it.

    An iteration is a collection of experience with its updates; those without updates count with
    the next one that has some.
    """

    enabled: bool = option(False, "Write a trace and a table of operators, as --profile does.")
    skip_first: int = option(
        2, "Iterations to skip at the start of the run, or of a resume.", at_least(0)
    )
    wait: int = option(0, "Iterations to skip before each trace.", at_least(0))
    warmup: int = option(
        1, "Iterations before each trace that are traced and left out.", at_least(0)
    )
    active: int = option(3, "Iterations of each trace.", at_least(1))
    repeat: int = option(1, "Number of traces; 0: one after the other until the end.", at_least(0))
    record_shapes: bool = option(False, "Record the shapes of operators' inputs.")
    profile_memory: bool = option(False, "Record what operators allocate and free.")
    with_stack: bool = option(False, "Record the Python calls, also of NumPy's work.")
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
