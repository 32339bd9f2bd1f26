"""Resume a run from its last checkpoint: the same run, with the options it was started with."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.checkpoint import Manifest, read_manifest
from rlplug.checkpoint.lookup import run_to_resume
from rlplug.checkpoint.manifest import CONFIG, reading
from rlplug.checkpoint.training import newest_valid, read_training, restore_feed
from rlplug.checkpoint.trust import is_own
from rlplug.config.sources import Setting
from rlplug.config.toml import flat
from rlplug.envs import EnvMaker, describe_env
from rlplug.errors import RequestError
from rlplug.plugin import Algorithm
from rlplug.registry import Registry, packages
from rlplug.runs.components import Components
from rlplug.runs.inline_plugins import InlinePlugins
from rlplug.runs.periodic import PeriodicTasks
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request
from rlplug.seeding import derive, set_random_state
from rlplug.tracking.location import RunFolder, runs_folder, runs_in
from rlplug.tracking.lock import RunLock
from rlplug.tracking.status import RunStatus

if TYPE_CHECKING:
    from rlplug.plugin import AddOn

__all__ = ["FinishedError", "Resumed", "resumable", "resumable_by_name"]

_LOG = logging.getLogger("rlplug")

_OF_OPTIMIZERS = ("algorithm.", "addons.")
_LIMIT = re.compile(r"\b(run|evaluation)\.\w+(?= = )")
"""The option in the reason why a run ended before its last step."""
_NO_LIMIT = {"run.stop_when": "", "evaluation.stop_at_return": "inf"}
"""The values that switch off a limit, where that is not 0."""
_ENVIRONMENT = "environment"
"""The name under which another environment counts as drift: a callable is no option."""
_PLUGIN = "plugin "
"""Begins the names of what differs of plugins: their versions."""
_FREE = re.compile(r"run\.preset|run\.init_from|tracking\.offline_ok|profiler\..*")
"""Options that may differ: the file of the run has all that a preset sets, and `last` of
`init_from` by the id that it meant."""


class FinishedError(RequestError):
    """The run has finished: there is nothing to resume."""


@attrs.define(kw_only=True, eq=False)
class Resumed:
    """A run to go on with, and the checkpoint to go on from."""

    folder: Path
    """The run's folder."""
    lock: RunLock
    prepared: Prepared
    drift: Mapping[str, str]
    """Options that are changed on purpose: name → `old → new`."""
    changed: Mapping[str, str]
    """Options that are not those of the checkpoint: an earlier resume may have changed them."""
    checkpoint: Path | None
    """None: there is none, and the run starts from its first step."""
    manifest: Manifest | None
    rerunnable: bool
    trust: bool = attrs.field(init=False, default=False)
    """Whether to read a pickle of environments that was downloaded from a server."""
    _periodic: Mapping[str, Any] = attrs.field(init=False, factory=dict)
    _warnings: list[str] = attrs.field(init=False, factory=list)
    _random: Mapping[str, Any] = attrs.field(init=False, factory=dict)
    """The global generators."""
    _has_feed: bool = attrs.field(init=False, default=True)
    learners: Mapping[str, Any] = attrs.field(init=False, factory=dict)
    """The state of the other learners in the checkpoint; empty if there was one alone."""

    @property
    def step(self) -> int:
        """The step to go on from."""
        return 0 if self.manifest is None else self.manifest.step

    @property
    def seed(self) -> int:
        """The seed of episodes that start anew."""
        return derive(self.prepared.config.run.seed, "resume", self.step)

    def of_tracking(self) -> dict[str, Any]:
        """How `open_tracking` goes on with the run."""
        return {"resume": self.folder, "step": self.step, "drift": self.drift, "lock": self.lock}

    def restore(self, components: Components) -> None:
        """Put learner, environments and counters back to where the checkpoint was written."""
        if self.checkpoint is None:
            status = RunStatus.read(self.folder)
            if status is not None and status.step:
                self._warnings.append(
                    f"there is no checkpoint: the run, which was at step {status.step:,}, starts "
                    "from its first step."
                )
            return
        learner, normalization = components.learner, components.environments.normalization
        training = read_training(self.checkpoint)
        with reading(self.checkpoint, "training state"):
            self._periodic, run = training["periodic"], training["run"]
            self._random = training["learner"]["random"]
            if normalization is not None and training["policy"]["normalization"]:
                normalization.set_state(training["policy"]["normalization"])
            if self.drift:
                # Another version of a plugin was allowed.
                training["learner"]["plugins"] = packages(components.calls.participants)
            # The groups of a saved optimizer have the settings that it was saved with.
            options_changed = any(name.startswith(_OF_OPTIMIZERS) for name in self.changed)
            learner.set_state(training["learner"], keep_settings=options_changed)
            components.trainer.set_state(run["trainer"])
            components.limits.set_state(run["limits"])
            roster = components.sampler.roster
            if roster is not None and "league" in run:
                roster.set_state(run["league"])
            self.learners = run.get("learners", {})
            other_number = self._other_number_of_learners()
            if other_number:
                # What is saved of each learner fits no other share of the environments.
                components.sampler.start(self.seed)
                reset = other_number
                lost = other_number if components.feed.rows is not None else ""
                if lost:
                    components.feed.set_state_without_rows(training["feed"], empty=True)
            else:
                names = training["policy"]["environment"]["name"], components.environments.name
                sampler = self._without_stale_environments(run["sampler"], *names)
                reset = components.sampler.set_state(sampler, seed=self.seed)
                lost = restore_feed(self.checkpoint, components.feed, training["feed"])
        here = f"at step {self.step:,}"
        self._has_feed = not lost
        if lost:
            self._warnings.append(f"the replay buffer is empty {here}: {lost.rstrip('.:')}.")
        if reset:
            self._warnings.append(
                f"episodes start anew {here}: the environments are not restored ({reset})."
            )

    def _other_number_of_learners(self) -> str:
        before, now = self.learners.get("size", 1), self.prepared.config.scale.learners
        if before == now:
            return ""
        return f"the run had {before} learner{'s' if before > 1 else ''}, now it has {now}"

    def _without_stale_environments(
        self, sampler: Mapping[str, Any], saved: str, name: str
    ) -> Mapping[str, Any]:
        """Without the pickle, if it is refused or of other environments than those of this name."""
        reason = ""
        if not self.prepared.config.checkpoint.save_environments:
            reason = "checkpoint.save_environments is false"
        elif self.checkpoint is not None and not (self.trust or is_own(self.checkpoint)):
            reason = "the pickle comes from a server; --trust reads it"
        elif changed := [name for name in self.changed if name.startswith("env.")]:
            reason = f"{changed[0]} has changed"
        elif name != saved:
            reason = f"those of {saved!r} were saved, these are {name!r}"
        return {**sampler, "environments": b"", "not_saved": reason} if reason else sampler

    def start(self, components: Components, periodic: PeriodicTasks) -> None:
        """Go on, after everything else of this process was set up."""
        # Only now is there a log that keeps them.
        for warning in self._warnings:
            _LOG.warning("rlplug: %s", warning)
        if self.checkpoint is None or self.manifest is None:
            components.sampler.start()
            return
        with reading(self.checkpoint, "training state"):
            periodic.set_state(self._periodic, self.manifest)
            set_random_state(self._random, components.learner.device)
        for name in periodic.checkpoints.resume_from(self.checkpoint, replay=self._has_feed):
            _LOG.warning("rlplug: a later checkpoint is set aside as %s.", name)


def resumable(
    run: str | Path,
    *,
    steps: int = 0,
    settings: Sequence[Setting] = (),
    allow_drift: bool = False,
    algorithm: str | type[Algorithm] = "",
    env: EnvMaker = "",
    addons: Sequence[str | AddOn] = (),
    trust: bool = False,
) -> Resumed:
    """Find a run of the runs folder and its last checkpoint, or raise why it cannot go on."""
    plugins = InlinePlugins.of(algorithm, addons, Registry.installed())

    def options(old: Request) -> Prepared:
        run_section = {"preset": "", **({"steps": steps} if steps else {})}
        new = attrs.evolve(old, flags={"run": run_section}, settings=tuple(settings))
        return prepare(new, plugins.registry, plugins.instances)

    resumed = _resumed(_own_folder(run, trust), plugins, options, allow_drift, env)
    resumed.trust = trust
    unused = sorted(set(plugins.addons) - set(resumed.prepared.config.run.addons))
    if unused:
        resumed.lock.release()
        raise RequestError(
            f"run {resumed.folder.name} has no add-on {unused[0]!r}.",
            "try: only the add-ons that it was started with",
        )
    return resumed


def resumable_by_name(name: str, wanted: Prepared) -> Resumed | None:
    """The run of this name, to go on with these options; None if there is none yet."""
    found = [one for one in runs_in(runs_folder()) if one.run_name == name]
    if not found:
        return None
    if len(found) > 1:
        raise RequestError(
            f"{len(found)} runs are named {name!r}: {', '.join(one.run_id for one in found)}.",
            "try: rlplug resume with the id of one of them, or another name",
        )
    plugins = InlinePlugins.of("", (), Registry.installed())
    return _resumed(found[0].path.resolve(), plugins, lambda old: wanted, allow_drift=False)


def _resumed(
    folder: Path,
    plugins: InlinePlugins,
    options: Callable[[Request], Prepared],
    allow_drift: bool,
    env: EnvMaker = "",
) -> Resumed:
    # Before anything is read: another process may be writing it.
    lock = RunLock.take(folder)
    try:
        checkpoint = newest_valid(folder, folder.name)
        manifest = None if checkpoint is None else read_manifest(checkpoint)
        # The file has all options: a preset that has changed since must not override them.
        request = _request(folder / CONFIG)
        made_with = {} if manifest is None else manifest.plugins
        try:
            with plugins.registry.made_with(made_with):
                old = prepare(request, plugins.registry, plugins.instances)
        except RequestError as error:
            error.add_hint(
                f"if it was started from Python: rlplug.resume({folder.name[:8]!r}, algorithm=…, "
                "env=…, addons=…) with the same ones"
            )
            raise
        new = options(request)
        saved = old if checkpoint is None else _prepared(checkpoint / CONFIG, plugins)
        drift = _drift(old, new, manifest)
        if "run.env" not in drift:
            drift |= _other_environment(folder, describe_env(env or new.config.run.env))
        resumed = Resumed(
            folder=folder,
            lock=lock,
            prepared=new,
            drift=drift,
            changed=_drift(saved, new, manifest),
            checkpoint=checkpoint,
            manifest=manifest,
            rerunnable=plugins.rerunnable,
        )
        _refuse_drift(resumed, allow_drift)
        _refuse_other_number_of_environments(resumed, saved)
        _refuse_finished(resumed, old)
    except BaseException:
        lock.release()
        raise
    return resumed


def _request(config: Path) -> Request:
    return Request(config=config, flags={"run": {"preset": ""}})


def _prepared(config: Path, plugins: InlinePlugins) -> Prepared:
    return prepare(_request(config), plugins.registry, plugins.instances)


def _own_folder(run: str | Path, trust: bool) -> Path:
    """The folder of a run in the runs folder: its checkpoints may hold pickles."""
    folder = run_to_resume(str(run), trust=trust).resolve()
    if folder.parent != (runs_folder() / "work").resolve():
        raise RequestError(
            f"run {run} is not in the runs folder {runs_folder()}: only runs started there can be "
            "resumed.",
            f"try: {_where(folder)}, or rlplug run --init-from {run}",
        )
    return folder


def _where(folder: Path) -> str:
    if folder.parent.name == "work":
        return f"RLPLUG_HOME={folder.parent.parent} rlplug resume {folder.name}"
    return "RLPLUG_HOME=/folder/of/runs"


def _drift(old: Prepared, new: Prepared, manifest: Manifest | None) -> dict[str, str]:
    """Options and plugins that are not what they were: name → `old → new`."""
    before, after = flat(old.config), flat(new.config)
    drift = {
        name: f"{json.dumps(before.get(name))} → {json.dumps(value)}"
        for name, value in after.items()
        if not _FREE.fullmatch(name) and before.get(name) != value
    }
    # A run may be made longer.
    if new.config.run.steps > old.config.run.steps:
        del drift["run.steps"]
    for one in (new.algorithm, *new.addons):
        package = manifest.plugins.get(one.name) if manifest is not None else None
        if package is not None and package != one.found.package:
            drift[f"{_PLUGIN}{one.name}"] = f"{package} → {one.found.package}"
    return drift


def _other_environment(folder: Path, name: str) -> dict[str, str]:
    """The environment, if it is not the one that the run was started with."""
    run = RunFolder.read(folder)
    recorded = "" if run is None else run.about.env
    if not (recorded and name) or recorded == name:
        return {}
    return {_ENVIRONMENT: f"{json.dumps(recorded)} → {json.dumps(name)}"}


def _refuse_drift(resumed: Resumed, allowed: bool) -> None:
    if resumed.drift and not allowed:
        changed = "; ".join(f"{name}: {change}" for name, change in resumed.drift.items())
        run, how = resumed.folder.name, "leave them out"
        if all(name.startswith(_PLUGIN) for name in resumed.drift):
            how = "install the version that it was started with"
        if _ENVIRONMENT in resumed.drift:
            how = "in Python, env=… with the one that it was started with"
        raise RequestError(
            f"run {run} would go on with other options: {changed}.",
            f"try: rlplug resume {run[:8]} with --allow-drift, which records the change, or {how}",
        )


def _refuse_other_number_of_environments(resumed: Resumed, saved: Prepared) -> None:
    """Whatever is saved per environment, from episodes to rollouts, fits no other number."""
    before = saved.config.sampling.num_envs
    now = resumed.prepared.config.sampling.num_envs
    if resumed.checkpoint is not None and before != now:
        run = resumed.folder.name
        raise RequestError(
            f"run {run} was saved with sampling.num_envs = {before} and cannot go on with {now}.",
            f"try: leave it out, or rlplug run --init-from {run}, which starts a new run from its "
            "weights",
        )


def _refuse_finished(resumed: Resumed, old: Prepared) -> None:
    run, steps = resumed.folder.name, resumed.prepared.config.run.steps
    if steps < old.config.run.steps and steps < resumed.step:
        raise RequestError(
            f"run {run} is at step {resumed.step:,} already, beyond {steps:,}.",
            f"try: --steps {2 * resumed.step}",
        )
    status = RunStatus.read(resumed.folder)
    longer = steps > old.config.run.steps
    if status is None or status.status != "FINISHED" or longer or resumed.drift:
        return
    if resumed.step < status.step:
        # Its last checkpoint could not be written: what it learned since is not on the disk.
        return
    if status.step >= steps:
        raise FinishedError(
            f"run {run} finished at step {status.step:,}: there is nothing to resume.",
            f"try: rlplug resume {run} --steps {2 * max(status.step, 1)}",
        )
    # A limit ended it, and would end it again.
    found = _LIMIT.search(status.stop_reason)
    option = "OPTION=VALUE" if found is None else _without(found[0])
    raise FinishedError(
        f"run {run} finished at step {status.step:,} of {steps:,}, when it reached a limit: "
        f"{status.stop_reason}.",
        f"try: rlplug resume {run} --set {option} --allow-drift, or another value of that limit",
    )


def _without(option: str) -> str:
    """The setting of a limit with which it ends no run."""
    return f"{option}={_NO_LIMIT.get(option, '0')}"
