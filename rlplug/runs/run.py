"""Put the parts of a run together, carry it out, and clean up whatever happens."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from rlplug.checkpoint import save_module
from rlplug.config.sources import Setting
from rlplug.envs import EnvMaker
from rlplug.errors import RequestError
from rlplug.hooks.info import RunInfo
from rlplug.plugin import DEFAULT_MODULE, Algorithm
from rlplug.registry import Registry
from rlplug.runs.given import Given
from rlplug.runs.interrupts import Interrupts, RunInterrupted, Terminated
from rlplug.runs.milestones import Milestones
from rlplug.runs.parts import Parts, put_together
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request
from rlplug.runs.result import RunResult, Status
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.console import console_for

if TYPE_CHECKING:
    from rlplug.plugin import AddOn

__all__ = ["carry_out", "check", "run"]

_LOG = logging.getLogger("rlplug")


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
        "steps": _plain(steps),
        "seed": _plain(seed),
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
    prepared = prepare(request, given.registry, given.instances)
    maker = None if isinstance(env, str) else env
    rerunnable = given.rerunnable and maker is None
    return carry_out(prepared, env=maker, rerunnable=rerunnable, show=show)


def _plain(number: Any) -> Any:
    """NumPy's whole numbers are welcome; of anything else that is wrong, the options tell."""
    return int(number) if isinstance(number, numpy.integer) else number


def carry_out(
    prepared: Prepared,
    *,
    env: EnvMaker | None = None,
    rerunnable: bool = True,
    show: bool = False,
) -> RunResult:
    """Everything from the first check to the last file of one run."""
    config = prepared.config
    maker = _named(prepared) if env is None else env
    with ExitStack() as stack, Interrupts() as interrupts:
        parts = put_together(prepared, maker, interrupts, stack)
        # Last, so that nothing is recorded of a run that could not start.
        tracking = open_tracking(config, environment=parts.environments.name)
        calls, trainer = parts.calls, parts.trainer
        calls.listen([tracking.listener, *([console_for()] if show else [])])
        milestones = parts.milestones(config, maker, tracking, interrupts)
        stack.callback(milestones.close)
        info = RunInfo(
            run_id=tracking.run_id,
            folder=tracking.folder,
            config=config,
            participants=calls.participants,
            hook_order=calls.order(),
            environment=parts.environments.name,
            feed=parts.feed.describe(),
            steps=config.run.steps,
            progress=lambda: trainer.step,
            rerunnable=rerunnable,
        )
        return _train(info, parts, milestones, tracking, interrupts)


def check(prepared: Prepared) -> str:
    """All that can be wrong before the first step, found out; what the feed keeps, in one line."""
    with ExitStack() as stack, Interrupts() as interrupts:
        parts = put_together(prepared, _named(prepared), interrupts, stack)
        interrupts.check()
        return parts.feed.describe()


def _named(prepared: Prepared) -> str:
    if not prepared.config.run.env:
        raise RequestError(
            f"{prepared.algorithm.label} has no environment of its own.", "try: --env ID"
        )
    return prepared.config.run.env


def _train(
    info: RunInfo,
    parts: Parts,
    milestones: Milestones,
    tracking: Tracking,
    interrupts: Interrupts,
) -> RunResult:
    """Start, run and end; whatever ends it, everybody is told and everything is written."""
    calls, trainer = parts.calls, parts.trainer

    def ended(status: Status) -> RunResult:
        module = parts.learner.modules[DEFAULT_MODULE]
        try:
            tracking.artifact(save_module(module, info.folder), "module")
        except OSError as error:
            _LOG.warning(
                "rlplug: no module.safetensors in %s (%s); earlier checkpoints are kept.",
                info.folder,
                error.strerror or error,
            )
        tracking.close(status)
        return RunResult(
            run_id=info.run_id,
            status=status,
            step=trainer.step,
            metrics=trainer.metrics,
            module=module,
            folder=info.folder,
            stopped=trainer.stopped,
            best=milestones.best.best_evaluation,
            where=tuple(tracking.describe()),
        )

    try:
        parts.sampler.start()
        calls.run_started(info)
        trainer.run()
        trainer.report()
        milestones.finish(trainer.step, trainer.metrics)
        calls.run_finished(trainer.step, trainer.metrics)
    except KeyboardInterrupt as error:
        trainer.report()
        if not interrupts.at_once:
            milestones.interrupted(trainer.step)
        calls.run_failed(trainer.step, error)
        raise RunInterrupted(ended("KILLED"), by_signal=isinstance(error, Terminated)) from None
    except BaseException as error:
        trainer.report()
        calls.run_failed(trainer.step, error)
        for line in (f"recorded up to step {trainer.step:,}:", *ended("FAILED").where):
            error.add_note(line)
        raise
    return ended("FINISHED")
