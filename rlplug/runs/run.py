"""`rlplug.run` and `rlplug.resume`: train from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import attrs

from rlplug.config.sources import settings_of
from rlplug.envs import EnvMaker
from rlplug.plugin import Algorithm
from rlplug.runs.life import Run
from rlplug.runs.prepare import prepare
from rlplug.runs.request import InlinePlugins, Request
from rlplug.runs.result import RunResult
from rlplug.tracking.console import console_for

if TYPE_CHECKING:
    from rlplug.plugin import AddOn
    from rlplug.runs.groups.result import GroupResult

__all__ = ["resume", "run"]


class _Options(TypedDict, total=False):
    """The arguments of `run`, of one seed or of several."""

    steps: int
    addons: Sequence[str | AddOn]
    config: Path | str | None
    options: Mapping[str, Any] | None
    data: str | Path | Sequence[str | Path]
    tags: Mapping[str, str] | None
    show: bool


@overload
def run(
    algorithm: str | type[Algorithm] = "",
    env: EnvMaker = "",
    *,
    seed: int | None = None,
    **options: Unpack[_Options],
) -> RunResult: ...
@overload
def run(
    algorithm: str | type[Algorithm] = "",
    env: EnvMaker = "",
    *,
    seeds: Iterable[int] | int,
    jobs: int = 0,
    **options: Unpack[_Options],
) -> GroupResult: ...
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
) -> RunResult | GroupResult:
    """Train, and record the run: `run("linucb", "LinearBandit-v0", seed=1, options={"alpha": 2})`.

    `algorithm` is a name or a class, `env` an id or a callable that makes one environment, `addons`
    are names or instances; a run with parts that are not installed is recorded as not re-runnable.
    `options` have the keys of `--set`; `config` is a TOML file. `show=True` prints progress.

    `data` are files of logged rows to learn from; `env` is then only evaluated in, and may be left
    out. `seeds=range(5)`, or 5, gives `GroupResult`: each seed has a process of its own, `jobs` of
    them at a time (0: by cores and `compute.num_threads`). Seeds with parts that are not installed
    run one after another in this process.
    """
    plugins = InlinePlugins.of(algorithm, addons)
    section: dict[str, Any] = {"algorithm": plugins.algorithm, "addons": list(plugins.addons)}
    section |= {"env": env if isinstance(env, str) else "", "steps": index(steps)}
    section = {name: value for name, value in section.items() if value}
    if seed is not None:
        section["seed"] = index(seed)
    flags: dict[str, Any] = {"run": section}
    if data:
        files = [data] if isinstance(data, str | Path) else data
        flags["data"] = {"files": [str(file) for file in files]}
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

    def one(request: Request) -> RunResult:
        return Run(
            prepared=prepare(request, plugins.registry, plugins.instances),
            env=maker,
            rerunnable=rerunnable,
            console=console_for() if show else None,
        ).carry_out()

    if seeds is None:
        return one(request)
    from rlplug.runs.groups.asked import Asked
    from rlplug.runs.groups.display import GroupDisplay, SilentDisplay
    from rlplug.runs.groups.life import result_of, run_group, run_in_order
    from rlplug.runs.groups.seeds import check_seeds, refuse_seed_option

    chosen = check_seeds(range(seeds) if isinstance(seeds, int) else seeds)
    refuse_seed_option(request)
    if rerunnable and not plugins.instances:
        asked = Asked.of_seeds(prepare(request, plugins.registry), chosen)
        return result_of(run_group(asked, jobs, GroupDisplay if show else SilentDisplay))

    def of_seed(seed: int) -> RunResult:
        flags = {**request.flags, "run": {**section, "seed": seed}}
        return one(attrs.evolve(request, flags=flags))

    what = "the environment, a callable" if maker else "plugins that are not installed"
    return result_of(run_in_order(chosen, of_seed, what))


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
    from rlplug.runs.resume import resumable

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
    return Run(
        prepared=resumed.prepared,
        env=env or None,
        rerunnable=resumed.rerunnable and isinstance(env, str),
        console=console_for() if show else None,
        resumed=resumed,
    ).carry_out()
