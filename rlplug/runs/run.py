"""Run a training from start to end, and clean up whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import attrs
import numpy

from rlplug.checkpoint import lasting_name
from rlplug.checkpoint.trust import sign_options
from rlplug.config.sections import RunConfig
from rlplug.config.sources import settings_of
from rlplug.envs import EnvMaker
from rlplug.errors import RequestError, RunFailedError
from rlplug.hooks.events import RunInfo
from rlplug.plugin import Algorithm
from rlplug.registry import Registry
from rlplug.review.record import Trial
from rlplug.runs.backend import with_backend
from rlplug.runs.components import Components, make_components
from rlplug.runs.ending import Ending
from rlplug.runs.inline_plugins import InlinePlugins
from rlplug.runs.league import league_listeners
from rlplug.runs.learners.first import first_of_several
from rlplug.runs.learners.share import refuse_unfit
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.profiler import Profiler
from rlplug.runs.request import Request
from rlplug.runs.result import RunResult
from rlplug.runs.resume import Resumed, resumable
from rlplug.runs.seeds.asked import check_seeds, refuse_seed_option
from rlplug.runs.seeds.display import SilentSeeds, display_for
from rlplug.runs.seeds.in_order import run_in_order
from rlplug.runs.seeds.results import RunResults, results_of
from rlplug.runs.seeds.several import run_seeds
from rlplug.runs.signals import Interrupted, Interrupts
from rlplug.sampling.watchdog import Watchdog
from rlplug.seeding import derive, forked
from rlplug.serving.description import write_signature
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.console import Console, SilentConsole, console_for
from rlplug.tracking.provenance import Likeness

if TYPE_CHECKING:
    from rlplug.plugin import AddOn

__all__ = ["carry_out", "check", "resume", "run"]


@overload
def run(
    algorithm: str | type[Algorithm] = "",
    env: EnvMaker = "",
    *,
    steps: int = 0,
    seed: int | None = None,
    addons: Sequence[str | AddOn] = (),
    config: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    data: str | Path | Sequence[str | Path] = (),
    tags: Mapping[str, str] | None = None,
    show: bool = False,
) -> RunResult: ...
@overload
def run(
    algorithm: str | type[Algorithm] = "",
    env: EnvMaker = "",
    *,
    steps: int = 0,
    seeds: Iterable[int] | int,
    jobs: int = 0,
    addons: Sequence[str | AddOn] = (),
    config: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    data: str | Path | Sequence[str | Path] = (),
    tags: Mapping[str, str] | None = None,
    show: bool = False,
) -> RunResults: ...
def run(
    algorithm: str | type[Algorithm] = "",
    env: EnvMaker = "",
    *,
    steps: int = 0,
    seed: int | None = None,
    seeds: Iterable[int] | int | None = None,
    jobs: int = 0,
    addons: Sequence[str | AddOn] = (),
    config: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    data: str | Path | Sequence[str | Path] = (),
    tags: Mapping[str, str] | None = None,
    show: bool = False,
) -> RunResult | RunResults:
    """Train, and record the run: `run("linucb", "LinearBandit-v0", seed=1, options={"alpha": 2})`.

    `algorithm` is a name or a class, `env` an id or a callable that makes one environment, `addons`
    are names or instances; a run with parts that are not installed is recorded as not re-runnable.
    `options` have the keys of `--set`; `config` is a TOML file. `show=True` prints progress.

    `data` are files of logged rows to learn from; `env` is then only evaluated in, and may be left
    out. `seeds=range(5)`, or 5, gives `RunResults`: each seed has a process of its own, `jobs` of
    them at a time (0: by cores and `compute.num_threads`). Seeds with parts that are not installed
    run one after another in this process.
    """
    plugins = InlinePlugins.of(algorithm, addons, Registry.installed())
    values = {
        "algorithm": plugins.algorithm,
        "addons": list(plugins.addons),
        "env": env if isinstance(env, str) else "",
        "steps": _plain(steps),
        "seed": _plain(seed),
    }
    flags: dict[str, Any] = {
        "run": {name: value for name, value in values.items() if value not in (None, "", [], 0)}
    }
    if seed == 0:
        flags["run"]["seed"] = 0
    if data:
        files = [data] if isinstance(data, str | Path) else data
        flags["data"] = {"files": [str(one) for one in files]}
    if tags:
        flags["tracking"] = {"tags": dict(tags)}
    request = Request(
        config=None if config is None else Path(config),
        flags=flags,
        settings=settings_of(options),
        flags_origin="arguments of run",
    )
    maker = None if isinstance(env, str) else env
    rerunnable = plugins.rerunnable and maker is None
    if seeds is not None:
        chosen = check_seeds(range(seeds) if isinstance(seeds, int) else seeds)
        refuse_seed_option(request)
        if rerunnable and not plugins.instances:
            display = display_for if show else SilentSeeds
            return results_of(run_seeds(request, chosen, jobs, display))
        one = partial(_one_seed, request, plugins, maker, show=show)
        what = "the environment, a callable" if maker else "plugins that are not installed"
        return results_of(run_in_order(chosen, one, what))
    prepared = prepare(request, plugins.registry, plugins.instances)
    return carry_out(prepared, env=maker, rerunnable=rerunnable, console=_console(show=show))


def _one_seed(
    request: Request, plugins: InlinePlugins, maker: EnvMaker | None, seed: int, *, show: bool
) -> RunResult:
    flags = {**request.flags, "run": {**request.flags["run"], "seed": seed}}
    one = attrs.evolve(request, flags=flags)
    prepared = prepare(one, plugins.registry, plugins.instances)
    rerunnable = plugins.rerunnable and maker is None
    return carry_out(prepared, env=maker, rerunnable=rerunnable, console=_console(show=show))


def resume(
    run: str | Path,
    *,
    steps: int = 0,
    options: Mapping[str, Any] | None = None,
    allow_drift: bool = False,
    algorithm: str | type[Algorithm] = "",
    env: EnvMaker = "",
    addons: Sequence[str | AddOn] = (),
    trust: bool = False,
    show: bool = False,
) -> RunResult:
    """Go on with a run from its last checkpoint: `resume("last")`, `resume(RUN_ID, steps=10**6)`.

    `run` is an id, the beginning of one, a name, or `last`. `steps` may make the run longer; other
    `options`, and another environment, need `allow_drift=True`. What was passed to `rlplug.run` and
    is not installed, the algorithm, the add-ons or the environment, has to be passed again. A run
    that is not in the runs folder is downloaded from MLflow; `trust=True` runs the code that it
    names and reads its pickled environments also if that is a server.
    """
    resumed = resumable(
        run,
        steps=int(steps),
        settings=settings_of(options),
        allow_drift=allow_drift,
        algorithm=algorithm,
        env=env,
        addons=addons,
        trust=trust,
    )
    maker = env or None
    return carry_out(
        resumed.prepared,
        env=maker,
        rerunnable=resumed.rerunnable and (maker is None or isinstance(maker, str)),
        console=_console(show=show),
        resumed=resumed,
    )


def _console(*, show: bool) -> Console | None:
    return console_for() if show else None


def _plain(number: Any) -> Any:
    """NumPy integers as int; other wrong types are reported with the options."""
    return int(number) if isinstance(number, numpy.integer) else number


def _with_lasting_names(prepared: Prepared) -> Prepared:
    section = prepared.config.run
    section = attrs.evolve(section, init_from=lasting_name(section.init_from))
    return attrs.evolve(prepared, config=attrs.evolve(prepared.config, run=section))


def carry_out(
    prepared: Prepared,
    *,
    env: EnvMaker | None = None,
    rerunnable: bool = True,
    console: Console | None = None,
    resumed: Resumed | None = None,
    listeners: Sequence[object] = (),
    interrupts: Interrupts | None = None,
    like: Likeness | None = None,
    trial: Trial | None = None,
    judge: Callable[[Mapping[str, float]], str] | None = None,
) -> RunResult:
    """Carry out one run, from the first check to the last file, or the rest of one.

    `console` shows how far it is, `listeners` hear its events, and `interrupts` takes the signals
    that end it. `judge` is asked after evaluations why the run is to end, if it is; `trial` is its
    place in a study.
    """
    notice, console = console is not None, console or SilentConsole()
    activities = console.activities
    if resumed is None and prepared.config.run.init_from:
        prepared = _with_lasting_names(prepared)
    maker = _default_env(prepared) if env is None else env
    ending: Ending | None = None
    with interrupts or Interrupts(notice=notice) as interrupts:
        try:
            with ExitStack() as stack:
                stack.callback(console.close)
                if resumed is not None:
                    stack.callback(resumed.lock.release)
                if prepared.config.sampling.backend == "auto":
                    with activities.doing("timing the environment"):
                        prepared, found = with_backend(prepared, maker)
                    console.say(found)
                stack.enter_context(Watchdog(prepared.config.sampling.step_timeout))
                # For environments and plugins that draw from them.
                stack.enter_context(forked(derive(prepared.config.run.seed, "global")))
                if prepared.config.scale.engine == "ray":
                    refuse_unfit(prepared, maker, rerunnable=rerunnable)
                several = first_of_several(prepared, maker, rerunnable=rerunnable)
                with activities.doing("making environments and modules"):
                    first = stack.enter_context(several)
                    components = make_components(
                        prepared,
                        maker,
                        interrupts,
                        stack,
                        resumed=resumed is not None,
                        ranks=None if first is None else first.ranks,
                        others=None if first is None else first.gather,
                    )
                    if judge is not None:
                        components.limits.judge = judge
                    if resumed is not None:
                        resumed.restore(components)
                    if first is not None:
                        saved = {} if resumed is None else resumed.learners
                        first.begin(components, saved, _start_seed(prepared, resumed))
                # After all checks: nothing is recorded of a run that cannot start.
                with activities.doing("opening MLflow"):
                    tracking = open_tracking(
                        prepared.config,
                        environment=components.environments.name,
                        chosen=prepared.chosen,
                        provenance=prepared.provenance(components.calls),
                        like=like,
                        before_creation=interrupts.hold,
                        trial=trial,
                        **({} if resumed is None else resumed.of_tracking()),
                    )
                sign_options(tracking.folder)
                ending = Ending(components, tracking, activities)
                made = prepared, maker, components, tracking, ending, interrupts, stack
                train = partial(
                    _train,
                    *made,
                    rerunnable=rerunnable,
                    console=console,
                    resumed=resumed,
                    listeners=listeners,
                )
                return ending.of(train, interrupts)
        except KeyboardInterrupt as error:
            # While the run started, or while its environments were closed. Ray makes a plain one of
            # what a handler raises in its calls.
            if type(error) is KeyboardInterrupt and interrupts.at_once:
                error = interrupts.received()
            if ending is None or not isinstance(error, Interrupted):
                raise error
            raise ending.at_once(error) from ending.error


def _train(
    prepared: Prepared,
    maker: EnvMaker,
    components: Components,
    tracking: Tracking,
    ending: Ending,
    interrupts: Interrupts,
    stack: ExitStack,
    *,
    rerunnable: bool,
    console: Console,
    resumed: Resumed | None,
    listeners: Sequence[object],
) -> None:
    """Train, and save what was trained."""
    interrupts.release()
    calls, trainer, config = components.calls, components.trainer, prepared.config
    leagues = league_listeners(components.sampler)
    calls.listen([tracking.listener, console, *leagues, *listeners])
    ending.periodic = periodic = components.periodic(
        config, maker, tracking, interrupts, console.activities
    )
    stack.callback(periodic.close)
    if config.profiler.enabled:
        ending.profiler = trainer.profiler = Profiler(
            config.profiler,
            tracking.folder,
            device=components.learner.device,
        )
    try:
        _write_signature(components, tracking)
        calls.tell("run_started", _info(config, components, tracking, rerunnable, resumed))
        if resumed is None:
            components.sampler.start()
        else:
            resumed.start(components, periodic)
        periodic.weights.finite_at(trainer.step)
        trainer.run()
        tracking.listener.limit = trainer.stopped
        trainer.finish()
        calls.tell("run_finished", trainer.step, trainer.metrics)
    except SystemExit as error:
        failed = RunFailedError(f"the run ended by itself: SystemExit: {error}.")
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        raise failed from error


def _start_seed(prepared: Prepared, resumed: Resumed | None) -> int:
    """The seed of episodes that start here."""
    seed = prepared.config.run.seed
    return seed if resumed is None or not resumed.step else resumed.seed


def _write_signature(components: Components, tracking: Tracking) -> None:
    """Write what the models of the run have in common; without it, they are not in MLflow."""
    environments = components.environments
    # The disk is full, or the folder was deleted: what follows says so.
    with suppress(OSError):
        write_signature(
            tracking.folder,
            environments.vector.single_observation_space,
            environments.action_space,
            frame_stack=environments.frame_stack,
            distributions=[one.found.distribution for one in components.calls.participants],
        )


def _info(
    config: RunConfig,
    components: Components,
    tracking: Tracking,
    rerunnable: bool,
    resumed: Resumed | None,
) -> RunInfo:
    calls, trainer = components.calls, components.trainer
    return RunInfo(
        run_id=tracking.run_id,
        folder=tracking.folder,
        config=config,
        participants=calls.participants,
        hook_order=calls.order(),
        environment=components.environments.name,
        feed=components.describe_feed(config.checkpoint),
        device=str(components.learner.device),
        steps=config.run.steps,
        unit="rows" if config.data.is_used else "steps",
        progress=lambda: trainer.step,
        step=0 if resumed is None else resumed.step,
        resumed=resumed is not None,
        rerunnable=rerunnable,
    )


def check(prepared: Prepared) -> str:
    """Check all that can fail before the first step; returns a description of the feed."""
    with Interrupts() as interrupts, ExitStack() as stack:
        components = make_components(prepared, _default_env(prepared), interrupts, stack)
        return components.feed.describe()


def _default_env(prepared: Prepared) -> str:
    if prepared.config.data.is_used:
        # Empty: the log has the spaces.
        return prepared.config.run.env
    if not prepared.config.run.env:
        raise RequestError(
            f"{prepared.algorithm.label} has no default environment.", "try: --env ID"
        )
    return prepared.config.run.env
