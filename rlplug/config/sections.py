"""The options of the core: one frozen class per section of a run's TOML file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal, get_type_hints

import attrs

from rlplug.config.condition import condition_problem
from rlplug.config.option import (
    above,
    at_least,
    between,
    changed,
    no_effect,
    not_empty,
    option,
    refuse,
)


@attrs.frozen(kw_only=True)
class ModuleSection:
    """One module of a run in an environment with several agents."""

    agents: str | tuple[str, ...] = option((), "Agents that it acts for: names or patterns.")
    options: Mapping[str, Any] = option(
        dict, "Any other key is an option of the algorithm.", factory=True, rest=True
    )

    @property
    def patterns(self) -> tuple[str, ...]:
        """`agents`, of which one alone may be written without a list."""
        return (self.agents,) if isinstance(self.agents, str) else self.agents


@attrs.frozen(kw_only=True)
class RunSection:
    """The algorithm, the environment and the length of the run."""

    algorithm: str = option("", "Name of the algorithm, as in --algo.", not_empty)
    env: str = option("", "Gymnasium id of the environment; empty: the algorithm's default.")
    addons: tuple[str, ...] = option((), "Names of the add-ons to use, in call order.")
    seed: int = option(0, "Seed of every random number generator of the run.", at_least(0))
    steps: int = option(
        100_000, "Environment steps of the run, over all environments.", at_least(1)
    )
    max_updates: int = option(0, "End the run after this many updates; 0 disables.", at_least(0))
    max_episodes: int = option(0, "End the run after this many episodes; 0 disables.", at_least(0))
    max_minutes: float = option(
        0.0, "End the run after this many minutes in all; 0 disables.", at_least(0)
    )
    stop_when: str = option(
        "",
        "End the run once a metric reaches a value: 'eval/return_mean >= 475', 'train/loss < 0.1'.",
        condition_problem,
    )
    preset: str = option("", "Named set of options of the algorithm, as in --preset; empty: none.")
    init_from: str = option("", "Run to load weights from: id, name, best:ENV, RUN@STEP.")
    init_strict: bool = option(
        True, "Refuse weights of init_from that do not all fit; false: load those that do."
    )

    def __attrs_post_init__(self) -> None:
        if not (self.init_strict or self.init_from):
            raise ValueError("init_strict = false would have no effect without init_from")


@attrs.frozen(kw_only=True)
class EnvSection:
    """Environment construction, wrappers and normalization."""

    wrappers: tuple[str, ...] = option((), "Wrappers, as 'package.module:Class', innermost first.")
    atari: bool = option(
        False,
        "Atari preprocessing: no-op resets, fire on reset, frame skip 4, 84 × 84 "
        "grayscale (needs rlplug[atari]).",
    )
    episodic_life: bool = option(True, "Atari: end the training episode on loss of life.")
    time_feature: bool = option(False, "Append the elapsed fraction of the time limit.")
    frame_stack: int = option(1, "Consecutive observations to stack, newest last.", at_least(1))
    normalize_observation: bool = option(False, "Normalize observations by running statistics.")
    normalize_reward: bool = option(False, "Divide rewards by the deviation of the return.")
    normalize_clip: float = option(
        10.0, "Clip normalized values to ± this; 0 disables.", at_least(0)
    )
    normalize_gamma: float = option(0.99, "Discount factor for normalize_reward.", between(0, 1))
    reward_clip: float = option(0.0, "Clip training rewards to ± this; 0 disables.", at_least(0))
    arguments: Mapping[str, Any] = option(
        dict, "Any other key is an argument of the environment.", factory=True, rest=True
    )


@attrs.frozen(kw_only=True)
class LearnerSection:
    """Gradient clipping, non-finite gradients, and accumulation."""

    max_grad_norm: float = option(
        0.0, "Maximum gradient norm, see clip_by; 0 disables.", at_least(0)
    )
    clip_by: Literal["global_norm", "norm", "value"] = option(
        "global_norm",
        "Clip by the norm over all gradients (global_norm), per tensor (norm), or by value.",
    )
    clip_over: Literal["optimizer", "module"] = option(
        "optimizer", "Take global_norm over each optimizer's parameters, or over the module's."
    )
    norm_type: float = option(2.0, "Type of the p-norm, such as inf.", above(0), infinite=True)
    nonfinite: Literal["skip", "zero", "stop"] = option(
        "skip",
        "On NaN or inf gradients: skip the optimizer step, set them to zero, or stop the run.",
    )
    on_divergence: Literal["warn", "stop"] = option(
        "warn",
        "If weights are not finite, or have not moved for 100 updates: warn, or stop (fail).",
    )
    balance_grad_norms: bool = option(False, "Scale the gradients of loss terms to equal norms.")
    accumulate: int = option(1, "Minibatches to accumulate gradients over per step.", at_least(1))
    optimizers: Literal["together", "in_turn"] = option(
        "together",
        "Several optimizers act on the same gradients, or each after a forward pass of its own.",
    )
    cycle_minibatches: bool = option(False, "Repeat minibatches of modules with few rows.")
    modules_to_train: tuple[str, ...] = option(
        ("*",), "Modules to train: ids or patterns.", not_empty
    )
    trace_hooks: bool = option(False, "Report seconds and gradient norms of each plugin's hooks.")


@attrs.frozen(kw_only=True)
class EvaluationSection:
    """Evaluation with greedy episodes in separate environments, and early stop."""

    every: int = option(
        0, "Steps between evaluations; 0: at the end. Unset: a tenth of run.steps.", at_least(0)
    )
    episodes: int = option(
        10,
        "Episodes per evaluation; 0 disables. Unset: 0 for one-step episodes, unless "
        "another option of [evaluation] is set.",
        at_least(0),
    )
    parallel: int = option(10, "Number of evaluation episodes played in parallel.", at_least(1))
    max_episode_steps: int = option(
        1_000_000, "Cut off episodes after this many steps.", at_least(1)
    )
    stop_at_return: float = option(float("inf"), "End the run at this mean return; inf disables.")
    patience: int = option(
        0, "End after so many evaluations without improvement; 0 disables.", at_least(0)
    )
    video: bool = option(False, "Record a video of the best evaluation and of the last step.")

    def __attrs_post_init__(self) -> None:
        if not self.episodes:
            idle = changed(self, ("stop_at_return", "patience", "video"))
            refuse(no_effect(idle, "with episodes = 0, which disables evaluation"))


@attrs.frozen(kw_only=True)
class CheckpointSection:
    """How often checkpoints are saved, in addition to best evaluations and the end of the run."""

    every: int = option(0, "Environment steps between checkpoints; 0: by time only.", at_least(0))
    updates: int = option(0, "Updates between checkpoints; 0 disables.", at_least(0))
    minutes: float = option(5.0, "Maximum minutes between checkpoints; 0 disables.", at_least(0))
    save_environments: bool = option(
        True,
        "Pickle environments, so that a resumed run continues episodes; rlplug resume "
        "alone reads it.",
    )
    keep: int = option(2, "Number of latest checkpoints to keep, besides the best.", at_least(1))
    keep_best: int = option(1, "Number of best-evaluated checkpoints to keep.", at_least(1))
    keep_every: int = option(
        0, "Keep the first checkpoint after every so many steps; 0: none.", at_least(0)
    )
    save_replay: bool = option(True, "Save the replay buffer with the latest checkpoints.")
    upload_replay: bool = option(False, "Upload the saved replay buffer to MLflow, too.")


@attrs.frozen(kw_only=True)
class TrackingSection:
    """MLflow tracking."""

    enabled: bool = option(True, "Record the run in MLflow; false does not import mlflow at all.")
    uri: str = option(
        "", "Tracking URI; empty: MLFLOW_TRACKING_URI, else mlflow.db in the runs folder."
    )
    offline_ok: bool = option(
        False, "Start even if the server does not answer; see rlplug runs sync."
    )
    experiment: str = option(
        "", "Experiment; empty: MLFLOW_EXPERIMENT_NAME, else rlplug/<environment>."
    )
    run_name: str = option("", "Run name; empty: <algorithm>-<environment>-s<seed>.")
    tags: Mapping[str, str] = option(dict, "Tags of the run, as --tag KEY=VALUE.", factory=True)
    system_metrics: Literal["auto", "on", "off", "once"] = option(
        "auto", "CPU, memory and GPU use; auto: on when a GPU is used."
    )
    system_interval: float = option(10.0, "Seconds between system metrics.", at_least(0.1))
    git_diff: bool = option(True, "Record changes since the last commit, up to 1 MB.")


@attrs.frozen(kw_only=True)
class ProfilerSection:
    """Traces of some iterations with torch's profiler; --profile enables it.

    An iteration is a collection of experience with its updates; those without updates count with
    the next one that has some.
    """

    enabled: bool = option(False, "Write a trace and a table of operators, as --profile does.")
    skip_first: int = option(2, "Iterations to skip at the start of the run.", at_least(0))
    wait: int = option(0, "Iterations to skip before each trace.", at_least(0))
    warmup: int = option(1, "Iterations before each trace that are left out.", at_least(0))
    active: int = option(3, "Iterations of each trace.", at_least(1))
    repeat: int = option(1, "Number of traces; 0: one after the other until the end.", at_least(0))
    record_shapes: bool = option(False, "Record the shapes of operators' inputs.")
    profile_memory: bool = option(False, "Record what operators allocate and free.")
    with_stack: bool = option(False, "Record the Python calls, also of NumPy's work.")
    with_flops: bool = option(False, "Estimate the FLOPs of matrix products and convolutions.")
    with_modules: bool = option(False, "Record the hierarchy of modules (TorchScript only).")
    table_size: int = option(20, "Number of operators in the table.", at_least(1))


def _columns(pattern: str, what: str) -> Any:
    return option(pattern, what, not_empty, _without_spaces)


def _without_spaces(value: Any) -> str | None:
    names = [value] if isinstance(value, str) else value
    return None if all(name == name.strip() for name in names) else "has spaces"


@attrs.frozen(kw_only=True)
class DataSection:
    """Logged data to learn from, and the columns to read (names, or patterns with *)."""

    files: tuple[str, ...] = option((), "Files, folders or patterns of logged rows to learn from.")
    format: Literal["auto", "parquet", "csv", "npz", "obd", "minari"] = option(
        "auto",
        "obd: a folder of the Open Bandit Dataset; minari: a data set id; auto: by the "
        "files' names.",
    )
    num_arms: int = option(0, "Number of arms; 0: as in the log.", at_least(0))
    rows_per_update: int = option(
        8192, "Rows per update where each row is learned once.", at_least(1)
    )
    shuffle_rows: int = option(
        100_000, "Rows in memory that minibatches are drawn from; 1: in order.", at_least(1)
    )
    offline_evaluation: Literal["off", "accepted", "all"] = option(
        "off",
        "Have a frozen copy of the policy act on each batch before it is learned (metrics "
        "ope/…). accepted: only rows that it agrees with are learned, weighted by 1 / "
        "propensity; all: all rows.",
    )
    max_importance_weight: float = option(
        0.0, "Clip 1 / propensity to this; 0 disables.", at_least(0)
    )
    eval_model_update_critical_weight: float = option(
        0.0,
        "Weight of data (rows, unless weighted) after which the frozen copy is renewed; "
        "0: each batch.",
        at_least(0),
    )
    assume_uniform: bool = option(
        False, "Take the actions as chosen uniformly among those present."
    )
    categories: str | tuple[str, ...] = option(
        "",
        "Columns of the context that are categories, as those of text are: names or patterns.",
    )
    hashed: str | tuple[str, ...] = option(
        "",
        "Categories that are hashed into hash_size features each, instead of one for each level: "
        "names or patterns.",
    )
    hash_size: int = option(32, "Features of a category that is hashed.", at_least(1))
    missing: Literal["refuse", "zero", "mean"] = option(
        "refuse",
        "What a missing number of the context becomes: 0, or the mean of the log. A missing "
        "category is then none of its levels.",
    )
    context: str | tuple[str, ...] = _columns(
        "context*",
        "Features of the context (the observation): names or patterns, in order; text becomes a "
        "feature of 0 and 1 for each of its levels. A pattern leaves "
        "out the columns of other options; !NAME leaves out a column.",
    )
    arms: str = _columns(
        "arms*", "Features of all arms: a column of lists per arm, or numbers named …_ARM_FEATURE."
    )
    action_mask: str = _columns("action_mask*", "Which arms were present, one value per arm.")
    action: str = _columns(
        "action", "The arm chosen: its number, or its name; or the values of a continuous one."
    )
    reward: str = _columns("reward", "Its reward.")
    propensity: str = _columns("propensity", "Probability with which it was chosen.")
    action_log_prob: str = _columns("action_log_prob", "The logarithm of that probability.")
    propensities: str = _columns("propensities*", "Probabilities of all arms.")
    rewards: str = _columns("rewards*", "Rewards of all arms, where they are known.")
    weight: str = _columns("weight", "How many rows each row stands for.")
    label: str = _columns("label", "Regression target, if it is not the reward.")
    position: str = _columns("position", "Place at which the arm was shown, from 0.")
    episode: str = _columns("episode", "Number of the episode; rows of one are consecutive.")
    terminated: str = _columns("terminated", "Whether the step ended its episode.")
    truncated: str = _columns("truncated", "Whether the episode was cut off after the step.")
    next_context: str = _columns("next_context*", "Observation after the step.")

    def __attrs_post_init__(self) -> None:
        if self.offline_evaluation == "off":
            idle = changed(self, ("max_importance_weight", "eval_model_update_critical_weight"))
            refuse(no_effect(idle, "with offline_evaluation = 'off'"))

    @property
    def is_used(self) -> bool:
        """Whether the run learns from logs."""
        return bool(self.files)


_NAMES = [field.name for field in attrs.fields(DataSection)]
COLUMN_OPTIONS = tuple(_NAMES[_NAMES.index("context") :])
"""The options that name columns."""


@attrs.frozen(kw_only=True)
class SamplingSection:
    """Parallel environments, worker processes, inference batches, and trajectories."""

    num_envs: int = option(1, "Number of environments stepped in parallel.", at_least(1))
    backend: Literal["in_process", "workers"] = option(
        "in_process", "Step environments in this process or in workers."
    )
    num_workers: int = option(0, "Worker processes; 0: one per CPU core.", at_least(0))
    envs_per_worker: int = option(
        0, "Environments per worker; 0: num_envs / num_workers.", at_least(0)
    )
    num_epoch_samples: int = option(
        0,
        "Environment steps to collect before each update; 0: what the algorithm asks for.",
        at_least(0),
    )
    min_batch_size: int = option(1, "workers: fewest environments to act for at once.", at_least(1))
    max_batch_size: int = option(
        0, "workers: most environments to act for at once; 0: all.", at_least(0)
    )
    max_wait_time: float = option(
        0.0, "workers: seconds to wait for more than min_batch_size.", at_least(0)
    )
    min_trajectory_length: int = option(1, "Leave out shorter pieces of episodes.", at_least(1))
    max_trajectory_length: int = option(
        0, "Truncate episodes after this many steps; 0: never.", at_least(0)
    )
    force_sync: bool = option(False, "workers: step in lock-step, with the results of in_process.")
    record: str = option("", "Folder to record the experience in, as a log; empty: do not.")
    optimal: bool = option(False, "Act without exploration while collecting experience.")
    max_staleness: int = option(
        0, "workers: most updates between an action and learning from it; 0: any.", at_least(0)
    )
    vectorization: Literal["auto", "native", "sync", "async"] = option(
        "auto",
        "native: the environment's own vector version; sync: one after another; async: a "
        "process for each; auto: native if it resets in the same step, or from 16 "
        "environments on; else sync.",
    )
    step_timeout: float = option(
        300.0,
        "Seconds of a step or reset after which a warning names the environment (workers: "
        "the run ends); 0 disables.",
        at_least(0),
    )

    @property
    def workers(self) -> int:
        """The number of worker processes."""
        if self.envs_per_worker:
            return -(-self.num_envs // self.envs_per_worker)
        return self.num_workers or min(os.cpu_count() or 1, self.num_envs)

    def __attrs_post_init__(self) -> None:
        """Refuse options that contradict each other, all at once."""
        problems = [
            f"{low} = {getattr(self, low)} is above {high} = {getattr(self, high)}"
            for low, high in _ORDERED
            if 0 < getattr(self, high) < getattr(self, low)
        ]
        product = self.num_workers * self.envs_per_worker
        if product and product != self.num_envs:
            problems.append(
                f"num_workers × envs_per_worker = {product} is not num_envs = {self.num_envs}"
            )
        if self.backend != "in_process" and self.vectorization in ("native", "async"):
            problems.append(f"vectorization = {self.vectorization!r} is for backend = 'in_process'")
        if self.backend == "in_process":
            problems += no_effect(changed(self, _OF_WORKERS), "with backend = 'in_process'")
        elif self.force_sync:
            problems += no_effect(changed(self, _OF_BATCHES), "with force_sync = true")
        refuse(problems)


_ORDERED = (
    ("min_batch_size", "max_batch_size"),
    ("min_batch_size", "num_envs"),
    ("num_workers", "num_envs"),
    ("min_trajectory_length", "num_epoch_samples"),
    ("min_trajectory_length", "max_trajectory_length"),
)
"""Options of which the first is at most the second, if that is set."""

_OF_BATCHES = ("min_batch_size", "max_batch_size", "max_wait_time", "max_staleness")
"""Options of `[sampling]` that have no effect in lock-step."""

_OF_WORKERS = ("num_workers", "envs_per_worker", "force_sync", *_OF_BATCHES)
"""Options of `[sampling]` that worker processes alone have."""


_DEVICE = re.compile(r"(auto|cpu|mps|cuda(:\d+)?)\Z")


def _device(value: str) -> str | None:
    if _DEVICE.match(value):
        return None
    return f"must be 'auto', 'cpu', 'mps', 'cuda' or 'cuda:N', got {value!r}"


@attrs.frozen(kw_only=True)
class ComputeSection:
    """Device, precision, compilation, threads and determinism."""

    device: str = option("auto", "Device to train on: auto, cpu, mps, cuda or cuda:N.", _device)
    dtype: Literal["float32", "float64"] = option("float32", "Data type of weights.")
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", "Precision of forward passes.")
    scaler_init_scale: float = option(65536.0, "fp16: initial loss scale.", above(0))
    scaler_growth_factor: float = option(2.0, "fp16: growth after growth_interval steps.", above(1))
    scaler_backoff_factor: float = option(
        0.5, "fp16: factor of the scale on overflow.", between(1e-6, 1.0)
    )
    scaler_growth_interval: int = option(2000, "fp16: steps before the scale grows.", at_least(1))
    scaler_min_scale: float = option(1e-4, "fp16: scale below which the run ends.", at_least(0))
    tf32: bool = option(True, "Allow TF32 in float32 matrix multiplications on CUDA.")
    arrays: Literal["auto", "off"] = option(
        "auto", "Run losses of small networks on NumPy arrays where they match torch."
    )
    compile: bool = option(False, "Compile forward and backward passes with torch.compile.")
    compile_mode: Literal[
        "auto", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
    ] = option(
        "auto", "compile: mode; auto: reduce-overhead for small networks on CUDA, else default."
    )
    compile_backend: str = option("inductor", "compile: backend, such as inductor or eager.")
    compile_fullgraph: bool = option(True, "compile: run uncompiled where the graph would break.")
    compile_dynamic: Literal["auto", "on", "off"] = option(
        "auto",
        "compile: graphs for varying shapes; off: one for each; auto: after the first change.",
    )
    deterministic: Literal["off", "warn", "strict"] = option(
        "off", "Use deterministic algorithms; where there is none, warn, or raise (strict)."
    )
    detect_anomaly: bool = option(False, "Autograd anomaly detection, which finds NaNs; slow.")
    num_threads: int = option(0, "Torch threads on the CPU; 0: automatic.", at_least(0))

    def __attrs_post_init__(self) -> None:
        """Refuse options that have no effect, all at once."""
        idle = [name for name in changed(self) if name.startswith("compile_")]
        problems = [] if self.compile else no_effect(idle, "with compile = false")
        if self.compile_backend != "inductor" and self.compile_mode not in ("auto", "default"):
            problems.append(
                f"compile_mode = {self.compile_mode!r} is a mode of the inductor, "
                f"not of compile_backend = {self.compile_backend!r}"
            )
        refuse(problems)


_OF_LEARNERS = ("learners", "engine")


@attrs.frozen(kw_only=True)
class ScaleSection:
    """Data-parallel learners, and sampling by runners on a Ray cluster."""

    learners: int = option(
        1,
        "Learners, each with an equal share of the samples, whose gradients are averaged.",
        at_least(1),
    )
    engine: Literal["local", "ray"] = option(
        "local", "ray: step environments by runners on a Ray cluster (needs rlplug[ray])."
    )
    runners: int = option(1, "ray: runners, which share num_envs equally.", at_least(1))
    envs_per_runner: int = option(0, "ray: environments per runner; 0: equal shares.", at_least(0))
    runner_cpus: float = option(1.0, "ray: CPUs that each runner reserves.", at_least(0))
    runner_gpus: float = option(0.0, "ray: GPUs that each runner reserves.", at_least(0))
    runner_resources: Mapping[str, float] = option(
        dict, "ray: custom resources per runner.", factory=True
    )
    learner_cpus: float = option(1.0, "ray: CPUs that each learner reserves.", at_least(0))
    learner_gpus: float = option(0.0, "ray: GPUs that each learner reserves.", at_least(0))
    learner_resources: Mapping[str, float] = option(
        dict, "ray: custom resources per learner.", factory=True
    )
    address: str = option("", "ray: HOST:PORT of a cluster, or auto; empty: a local one.")
    max_staleness: int = option(
        -1,
        "ray: collections that runners may be ahead of the weights; -1: 0 for rollouts, else 1.",
        at_least(-1),
    )
    max_restarts: int = option(3, "ray: died runners to replace per learner.", at_least(0))
    placement_timeout: float = option(
        300.0, "ray: seconds to wait for room on the cluster.", at_least(0)
    )

    def __attrs_post_init__(self) -> None:
        """Refuse options that contradict each other or have no effect, all at once."""
        ray = [name for name in changed(self) if name not in _OF_LEARNERS]
        learner = [name for name in ray if name.startswith("learner_")]
        if self.engine == "local":
            refuse(no_effect(ray, "with engine = 'local': add --runners N"))
        elif self.learners == 1:
            refuse(no_effect(learner, "with one learner"))


DRAWS = ("latest", "uniform", "prioritized")
"""How opponents are drawn."""


@attrs.frozen(kw_only=True)
class LeagueSection:
    """Self-play against frozen copies of the modules, in environments with several agents."""

    every: int = option(0, "Steps between copies to the pool; 0: by win_rate.", at_least(0))
    win_rate: float = option(
        0.0,
        "Add a copy once this share of the last 100 episodes against the pool is won "
        "(draws: half); with every: whichever comes first.",
        between(0, 1),
    )
    pool: int = option(8, "Number of copies to keep; the oldest is removed.", at_least(1))
    draw: Literal["latest", "uniform", "prioritized"] = option(
        "uniform",
        "Draw opponents: the latest copy, all alike, or more often those that win more "
        "(prioritized).",
    )
    self_play: float = option(0.0, "Share of episodes without copies.", between(0, 1))
    sides: tuple[str, ...] = option(
        (),
        "A pattern of agents for each side: 'red_*'. Unset: every agent of a single "
        "module, or every module.",
    )

    def __attrs_post_init__(self) -> None:
        if not self.is_used:
            refuse(no_effect(changed(self), "without every or win_rate, by which copies are added"))
        elif self.self_play == 1:
            raise ValueError("self_play = 1 leaves no episode to the copies")

    @property
    def is_used(self) -> bool:
        """Whether there is a league."""
        return bool(self.every or self.win_rate)


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


@attrs.frozen(kw_only=True)
class TuneSection:
    """Of `rlplug tune`, which searches for options; `rlplug run` ignores them."""

    trials: int = option(20, "Trials of the study; failed and pruned ones count.", at_least(1))
    space: Mapping[str, Any] = option(
        dict,
        "The options to search: learning_rate = { low = 1e-5, high = 1e-2, log = true }, "
        "n_epochs = { low = 3, high = 20 }, net_arch = { choices = [[64, 64], [256, 256]] "
        '}; also "sampling.num_envs" and the like, and step.',
        factory=True,
    )
    seeds: int | str = option("", "Seeds of each trial: 3 (0 to 2), 0-4, or 1,2,5; empty: one.")
    metric: str = option(
        "", "Metric whose last value is optimized; empty: the best evaluation's return."
    )
    direction: Literal["", "maximize", "minimize"] = option(
        "", "Empty: minimize a metric with regret or loss in its name, maximize others."
    )
    sampler: str = option("tpe", "Optuna's sampler: tpe, random, gp, qmc, cmaes, or grid.")
    sampler_options: Mapping[str, Any] = option(dict, "Arguments of the sampler.", factory=True)
    pruner: str = option(
        "median",
        "Optuna's pruner: median, percentile, successive_halving, hyperband, threshold, or none.",
    )
    pruner_options: Mapping[str, Any] = option(dict, "Arguments of the pruner.", factory=True)
    seed: int = option(0, "Seed of the sampler.", at_least(0))

    @property
    def maximizes(self) -> bool:
        """Whether larger is better."""
        if self.direction:
            return self.direction == "maximize"
        return not any(word in self.metric for word in ("regret", "loss"))
