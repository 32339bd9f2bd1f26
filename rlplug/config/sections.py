"""The options of the core: one frozen class per section of a run's TOML file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from rlplug.config.condition import condition_problem
from rlplug.config.data_section import DataSection
from rlplug.config.module_section import ModuleSection
from rlplug.config.option import above, at_least, between, not_empty, one_of, option
from rlplug.config.scale_section import ScaleSection

__all__ = [
    "CORE_SECTIONS",
    "CheckpointSection",
    "ComputeSection",
    "DataSection",
    "EnvSection",
    "EvaluationSection",
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
        "",
        "Run to load initial weights from, as in --init-from: id, name, best:ENV, RUN@STEP.",
    )
    init_strict: bool = option(
        True,
        "Refuse weights of init_from that do not all fit; false: load those that fit, and name the "
        "others in a warning.",
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
        "Apply Atari preprocessing: no-op resets, fire on reset, frame skip 4, 84 × 84 grayscale "
        "(needs rlplug[atari]).",
    )
    episodic_life: bool = option(
        True, "Atari: end the training episode on loss of life, without resetting the game."
    )
    time_feature: bool = option(
        False, "Append the remaining fraction of the time limit to the observation."
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
class SamplingSection:
    """Parallel environments, worker processes, inference batches, and trajectories."""

    num_envs: int = option(1, "Number of environments stepped in parallel.", at_least(1))
    backend: str = option(
        "in_process",
        "in_process: step environments in this process; workers: in worker processes; auto: in "
        "workers and lock-step (force_sync) where a few timed steps show that it is faster.",
        one_of(("in_process", "workers", "auto")),
    )
    num_workers: int = option(
        0, "Number of worker processes; 0: one per CPU core, at most num_envs.", at_least(0)
    )
    envs_per_worker: int = option(
        0, "Environments in each worker process; 0: num_envs divided by num_workers.", at_least(0)
    )
    num_epoch_samples: int = option(
        0,
        "Environment steps to collect before each update; 0: what the algorithm asks for. workers: "
        "from whichever environments bring them, in_process: the same number from each.",
        at_least(0),
    )
    min_batch_size: int = option(
        1, "workers: minimum number of environments to choose actions for at once.", at_least(1)
    )
    max_batch_size: int = option(
        0,
        "workers: maximum number of environments to choose actions for at once; 0: num_envs.",
        at_least(0),
    )
    max_wait_time: float = option(
        0.0,
        "workers: seconds to wait for more environments once min_batch_size are ready.",
        at_least(0),
    )
    min_trajectory_length: int = option(
        1,
        "Leave out pieces of episodes in a rollout that have fewer steps than this.",
        at_least(1),
    )
    max_trajectory_length: int = option(
        0, "Truncate training episodes after this many steps; 0 disables.", at_least(0)
    )
    force_sync: bool = option(
        False,
        "workers: step all environments in lock-step; the results equal those of in_process.",
    )
    record: str = option(
        "",
        "Folder to record the experience in, as a log, as in --record; empty: do not.",
    )
    optimal: bool = option(False, "Act without exploration while collecting experience.")
    max_staleness: int = option(
        0,
        "workers: maximum number of updates between choosing an action and learning from it; "
        "0: no limit.",
        at_least(0),
    )
    max_restarts: int = option(
        3,
        "workers: number of worker processes to replace in a run, after an exception, a death or "
        "a step beyond step_timeout.",
        at_least(0),
    )
    vectorization: str = option(
        "auto",
        "native: the environment's own vector version; sync: step one after another; async: "
        "Gymnasium's AsyncVectorEnv, a process for each; auto: native if it resets in the same "
        "step, or from 16 environments on; else sync.",
        one_of(("auto", "native", "sync", "async")),
    )
    step_timeout: float = option(
        300.0,
        "Warn once, with its name, if an environment takes longer than this many seconds for one "
        "step or reset (workers: replace its worker process); 0 disables.",
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
        problems = []
        if self.max_batch_size and self.min_batch_size > self.max_batch_size:
            problems.append(
                f"min_batch_size = {self.min_batch_size} is above max_batch_size = "
                f"{self.max_batch_size}"
            )
        if self.min_batch_size > self.num_envs:
            problems.append(
                f"min_batch_size = {self.min_batch_size} is above num_envs = {self.num_envs}"
            )
        if self.num_workers > self.num_envs:
            problems.append(f"num_workers = {self.num_workers} is above num_envs = {self.num_envs}")
        if self.envs_per_worker:
            workers = -(-self.num_envs // self.envs_per_worker)
            if self.num_workers and workers != self.num_workers:
                problems.append(
                    f"num_workers × envs_per_worker = "
                    f"{self.num_workers * self.envs_per_worker} is not num_envs = {self.num_envs}"
                )
        if 0 < self.num_epoch_samples < self.min_trajectory_length:
            problems.append(
                f"num_epoch_samples = {self.num_epoch_samples} is below min_trajectory_length = "
                f"{self.min_trajectory_length}"
            )
        if 0 < self.max_trajectory_length < self.min_trajectory_length:
            problems.append(
                f"max_trajectory_length = {self.max_trajectory_length} is below "
                f"min_trajectory_length = {self.min_trajectory_length}"
            )
        if self.backend != "in_process" and self.vectorization in ("native", "async"):
            problems.append(f"vectorization = {self.vectorization!r} is for backend = 'in_process'")
        idle: list[str] = []
        why = "force_sync = true" if self.force_sync else f"backend = {self.backend!r}"
        if self.backend == "in_process":
            idle, why = self._set_among(_OF_WORKERS), "backend = 'in_process'"
        elif self.force_sync or self.backend == "auto":
            idle = self._set_among(_OF_BATCHES)
        if idle:
            problems.append(f"{' and '.join(idle)} would have no effect with {why}")
        if problems:
            raise ValueError("; ".join(problems))

    def _set_among(self, names: Sequence[str]) -> list[str]:
        """Those of the options that differ from their defaults."""
        fields = attrs.fields_dict(type(self))
        return [name for name in names if getattr(self, name) != fields[name].default]

    def without_workers(self) -> SamplingSection:
        """The same for `backend = "in_process"`."""
        fields = attrs.fields_dict(type(self))
        defaults: dict[str, Any] = {name: fields[name].default for name in _OF_WORKERS}
        return attrs.evolve(self, backend="in_process", **defaults)


_OF_BATCHES = ("min_batch_size", "max_batch_size", "max_wait_time", "max_staleness")
"""Options of `[sampling]` that have no effect in lock-step."""

_OF_WORKERS = ("num_workers", "envs_per_worker", "force_sync", "max_restarts", *_OF_BATCHES)
"""Options of `[sampling]` that worker processes alone have."""


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
        "Compute global_norm over each optimizer's parameters, or over the whole module.",
        one_of(("optimizer", "module")),
    )
    norm_type: float = option(
        2.0, "Type of the p-norm; inf for the infinity norm.", above(0), infinite=True
    )
    nonfinite: str = option(
        "skip",
        "On NaN or inf gradients: skip the optimizer step, set them to zero, or stop the run and "
        "name the loss term.",
        one_of(("skip", "zero", "stop")),
    )
    on_divergence: str = option(
        "warn",
        "If weights are not finite, or non-finite gradients have kept them from moving for 100 "
        "updates: warn once, or stop (the run fails).",
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
        "Several optimizers of a module act on the same gradients (together), or one after the "
        "other, each with a forward pass and loss of its own (in_turn).",
        one_of(("together", "in_turn")),
    )
    cycle_minibatches: bool = option(
        False,
        "Repeat the minibatches of modules with few rows, shuffled again, while those of others "
        "last.",
    )
    join_from: int = option(
        4,
        "Minimum number of modules of equal architecture to update together with vmap; 0 disables.",
        at_least(0),
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


_DEVICE = re.compile(r"(auto|cpu|mps|cuda(:\d+)?)\Z")


def _device(value: str) -> str | None:
    if _DEVICE.match(value):
        return None
    return f"must be 'auto', 'cpu', 'mps', 'cuda' or 'cuda:N', got {value!r}"


@attrs.frozen(kw_only=True)
class ComputeSection:
    """Device, precision, compilation, threads and determinism."""

    device: str = option(
        "auto", "Device to train on: auto, cpu, mps, cuda or cuda:N; auto logs its choice.", _device
    )
    dtype: str = option(
        "float32", "Data type of weights: float32 or float64.", one_of(("float32", "float64"))
    )
    precision: str = option(
        "fp32",
        "Precision of forward passes: fp32, or mixed precision with bf16 or fp16.",
        one_of(("fp32", "bf16", "fp16")),
    )
    scaler_init_scale: float = option(
        65536.0, "fp16: initial loss scale (GradScaler init_scale).", above(0)
    )
    scaler_growth_factor: float = option(
        2.0,
        "fp16: factor by which the scale grows after growth_interval steps without overflow.",
        above(1),
    )
    scaler_backoff_factor: float = option(
        0.5, "fp16: factor by which the scale shrinks on overflow.", between(1e-6, 1.0)
    )
    scaler_growth_interval: int = option(
        2000, "fp16: consecutive steps without overflow before the scale grows.", at_least(1)
    )
    scaler_min_scale: float = option(
        1e-4,
        "fp16: end the run when the scale falls below this: the loss itself is not finite.",
        at_least(0),
    )
    tf32: bool = option(True, "Allow TF32 in float32 matrix multiplications on CUDA.")
    arrays: str = option(
        "auto",
        "Run small networks' losses on NumPy arrays where they match torch: auto or off.",
        one_of(("auto", "off")),
    )
    compile: bool = option(
        False, "Compile forward and backward passes with torch.compile; pays off in long runs."
    )
    compile_part: str = option(
        "step",
        "compile: what is compiled: forward pass, loss and gradients in one graph (step), or the "
        "forward pass alone (model).",
        one_of(("step", "model")),
    )
    compile_mode: str = option(
        "auto",
        "compile: mode of torch.compile; auto: reduce-overhead (CUDA graphs) for small networks on "
        "CUDA, else default.",
        one_of(
            ("auto", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
        ),
    )
    compile_backend: str = option(
        "inductor", "compile: backend of torch.compile, such as inductor, cudagraphs or eager."
    )
    compile_fullgraph: bool = option(
        True,
        "compile: refuse breaks in the graph, and run uncompiled instead; false allows them.",
    )
    compile_dynamic: str = option(
        "auto",
        "compile: graphs for varying shapes: on, off (one for each), or auto (after the first "
        "change).",
        one_of(("auto", "on", "off")),
    )
    deterministic: str = option(
        "off",
        "Use deterministic algorithms only; where there is none, warn, or raise (strict).",
        one_of(("off", "warn", "strict")),
    )
    detect_anomaly: bool = option(
        False, "Enable autograd anomaly detection, which names the source of NaNs; slow."
    )
    num_threads: int = option(
        0,
        "Number of torch threads on the CPU; 0: automatic (1 for small networks).",
        at_least(0),
    )

    def __attrs_post_init__(self) -> None:
        """Refuse options that have no effect, all at once."""
        fields = attrs.fields_dict(type(self))
        problems = [
            f"{name} = {getattr(self, name)!r} would have no effect with compile = false"
            for name in fields
            if name.startswith("compile_")
            and not self.compile
            and getattr(self, name) != fields[name].default
        ]
        if self.compile_backend != "inductor" and self.compile_mode not in ("auto", "default"):
            problems.append(
                f"compile_mode = {self.compile_mode!r} is a mode of the inductor, "
                f"not of compile_backend = {self.compile_backend!r}"
            )
        if problems:
            raise ValueError("; ".join(problems))


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
        if self.episodes:
            return
        idle = {
            "stop_at_return": self.stop_at_return < float("inf"),
            "patience": self.patience > 0,
            "video": self.video,
        }
        unused = [name for name, is_set in idle.items() if is_set]
        if unused:
            raise ValueError(
                f"{' and '.join(unused)} would have no effect: episodes = 0 disables evaluation"
            )


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
        "Save environments that can be pickled; otherwise a resumed run starts new episodes. Such "
        "a pickle is read only by rlplug resume, of runs in the runs folder.",
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
        "Save the replay buffer with the latest checkpoints, in about twice its size on disk; "
        "false: a resumed run starts with an empty one.",
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
        False, "Start and resume also if the server does not answer; `rlplug sync` uploads the run."
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
    with_stack: bool = option(False, "Record the Python calls, also of NumPy's work; slow.")
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


CORE_SECTIONS: dict[str, type[Any]] = {
    "run": RunSection,
    "env": EnvSection,
    "data": DataSection,
    "sampling": SamplingSection,
    "learner": LearnerSection,
    "compute": ComputeSection,
    "evaluation": EvaluationSection,
    "checkpoint": CheckpointSection,
    "tracking": TrackingSection,
    "profiler": ProfilerSection,
    "scale": ScaleSection,
}
"""The core's sections by name, in the order in which they are written."""
