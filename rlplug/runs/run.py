"""Put the parts of a run together, carry it out, and clean up whatever happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplug.checkpoint import save_module
from rlplug.config.sources import Setting
from rlplug.envs import Environments, EnvMaker, long_episodes, make_environments
from rlplug.errors import PluginError, RequestError, UnsupportedSpaceError
from rlplug.feeds import Feed, FeedSetting, Stream
from rlplug.hooks.calls import HookCalls
from rlplug.hooks.info import RunInfo
from rlplug.learner import Learner
from rlplug.plugin import DEFAULT_MODULE, Algorithm
from rlplug.registry import Registry
from rlplug.runs.given import Given
from rlplug.runs.interrupts import Interrupts, RunInterrupted, Terminated
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request
from rlplug.runs.result import RunResult, Status
from rlplug.sampling import VectorSampler
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.console import console_for
from rlplug.trainer import Trainer

if TYPE_CHECKING:
    from rlplug.plugin import AddOn

__all__ = ["carry_out", "run"]


def run(
    algorithm: str | type[Algorithm] = "",
    env: EnvMaker = "",
    *,
    steps: int = 0,
    seed: int | None = None,
    addons: Sequence[str | AddOn] = (),
    config: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    show: bool = False,
) -> RunResult:
    """Train, and record the run: `run("linucb", "LinearBandit-v0", seed=1, options={"alpha": 2})`.

    `algorithm` is a name or a class, `env` an id or a callable that makes one environment, `addons`
    are names or instances; what has no installed name is recorded as not re-runnable. `options` are
    keyed as in `--set`; `config` is a TOML file. `show=True` prints progress.
    """
    given = Given.of(algorithm, addons, Registry.installed())
    said = {
        "algorithm": given.algorithm,
        "addons": list(given.addons),
        "env": env if isinstance(env, str) else "",
        "steps": steps,
        "seed": seed,
    }
    flags: dict[str, Any] = {
        "run": {name: value for name, value in said.items() if value not in (None, "", [], 0)}
    }
    if seed == 0:
        flags["run"]["seed"] = 0
    if tags:
        flags["tracking"] = {"tags": dict(tags)}
    request = Request(
        config=None if config is None else Path(config),
        flags=flags,
        settings=tuple(Setting(key, value) for key, value in (options or {}).items()),
        flags_origin="arguments of run",
    )
    prepared = given.put_into(prepare(request, given.registry))
    maker = None if isinstance(env, str) else env
    rerunnable = given.rerunnable and maker is None
    return carry_out(prepared, env=maker, rerunnable=rerunnable, show=show)


def carry_out(
    prepared: Prepared,
    *,
    env: EnvMaker | None = None,
    rerunnable: bool = True,
    show: bool = False,
) -> RunResult:
    """Everything from the first check to the last file of one run."""
    config = prepared.config
    maker = config.run.env if env is None else env
    if not maker:
        raise RequestError(
            f"{prepared.algorithm.label} has no environment of its own.", "try: --env ID"
        )
    calls = prepared.hooks()
    with ExitStack() as stack, Interrupts() as interrupts:
        feed = _feed(prepared)
        environments = _environments(prepared, maker, feed)
        stack.callback(environments.vector.close)
        learner = _learner(calls, environments, prepared)
        opened = feed.open(_setting(prepared, environments, learner))
        sampler = VectorSampler(
            environments,
            learner.modules[DEFAULT_MODULE],
            seed=config.run.seed,
            steps=opened.steps_per_collect,
            keep_next=opened.wants_next,
            by_environment=opened.by_environment,
            state_interval=opened.state_interval,
        )
        trainer = Trainer(
            calls, learner, sampler, opened, steps=config.run.steps, stop=interrupts.check
        )
        # Last, so that nothing is recorded of a run that could not start.
        tracking = open_tracking(config, environment=environments.name)
        calls.listen([tracking.listener, *([console_for()] if show else [])])
        info = RunInfo(
            run_id=tracking.run_id,
            folder=tracking.folder,
            config=config,
            participants=calls.participants,
            hook_order=calls.order(),
            environment=environments.name,
            steps=config.run.steps,
            progress=lambda: trainer.step,
            rerunnable=rerunnable,
        )
        return _train(info, calls, trainer, sampler, learner, tracking)


def _train(
    info: RunInfo,
    calls: HookCalls,
    trainer: Trainer,
    sampler: VectorSampler,
    learner: Learner,
    tracking: Tracking,
) -> RunResult:
    """Start, run and end; whatever ends it, everybody is told and everything is written."""

    def ended(status: Status) -> RunResult:
        module = learner.modules[DEFAULT_MODULE]
        tracking.artifact(save_module(module, info.folder), "module")
        tracking.close(status)
        return RunResult(
            run_id=info.run_id,
            status=status,
            step=trainer.step,
            metrics=trainer.metrics,
            module=module,
            folder=info.folder,
            where=tuple(tracking.describe()),
        )

    try:
        sampler.start()
        calls.run_started(info)
        trainer.run()
        trainer.report()
        calls.run_finished(trainer.step, trainer.metrics)
    except KeyboardInterrupt as error:
        trainer.report()
        calls.run_failed(trainer.step, error)
        raise RunInterrupted(ended("KILLED"), by_signal=isinstance(error, Terminated)) from None
    except BaseException as error:
        trainer.report()
        calls.run_failed(trainer.step, error)
        for line in (f"the run ended at step {trainer.step:,}", *ended("FAILED").where):
            error.add_note(line)
        raise
    return ended("FINISHED")


def _feed(prepared: Prepared) -> Feed:
    feed = prepared.algorithm.plugin.feed()
    if not isinstance(feed, Feed):
        raise PluginError(
            f"{prepared.algorithm.label}: feed() gave {type(feed).__name__}.",
            "try: return rlplug.feeds.Stream(...), Rollout(...) or Replay(...)",
        )
    return feed


def _setting(prepared: Prepared, environments: Environments, learner: Learner) -> FeedSetting:
    """What the feed may need to know."""
    config = prepared.config
    return FeedSetting(
        observation_space=environments.vector.single_observation_space,
        action_space=environments.action_space,
        num_envs=environments.num_envs,
        steps=config.run.steps,
        seed=config.run.seed,
        double=config.compute.dtype == "float64",
        has_memory=learner.modules[DEFAULT_MODULE].initial_state(1) is not None,
        frame_stack=environments.frame_stack,
        normalization=environments.normalization,
    )


def _environments(prepared: Prepared, maker: EnvMaker, feed: Feed) -> Environments:
    """The environments, once it is clear that the algorithm can handle them."""
    config = prepared.config
    environments = make_environments(
        maker,
        config.sampling.num_envs,
        config.env,
        vectorization=config.sampling.vectorization,
    )
    spaces = (environments.observation_space, environments.action_space)
    reason = prepared.algorithm.plugin.supports(*spaces)
    if reason is None and isinstance(feed, Stream) and feed.one_step_episodes:
        reason = long_episodes(maker, config.env, config.run.seed)
    if reason is not None:
        environments.vector.close()
        raise UnsupportedSpaceError(
            f"{prepared.algorithm.label} cannot be run on {environments.name!r}: {reason.rstrip('.')}.",
            f"see: rlplug plugins show {prepared.algorithm.name}",
        )
    return environments


def _learner(calls: HookCalls, environments: Environments, prepared: Prepared) -> Learner:
    config = prepared.config
    learner = Learner(
        calls,
        {DEFAULT_MODULE: (environments.observation_space, environments.action_space)},
        seed=config.run.seed,
        learning=config.learner,
        compute=config.compute,
    )
    learner.build()
    return learner
