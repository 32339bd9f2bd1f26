"""Resume a run from its last checkpoint: the same run, with the options it was started with."""

from __future__ import annotations

import json
import logging
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.checkpoint import Manifest, read_manifest
from rlplug.checkpoint.lookup import run_to_resume
from rlplug.checkpoint.manifest import CONFIG, reading
from rlplug.checkpoint.state import newest_valid, read_training, restore_feed
from rlplug.checkpoint.trust import OF_RUN, admit
from rlplug.config.secrets import masked_toml
from rlplug.config.sources import Setting, read_toml
from rlplug.config.toml import flat
from rlplug.envs import EnvMaker, describe_env
from rlplug.errors import RequestError
from rlplug.plugin import Algorithm
from rlplug.registry import packages
from rlplug.runs.components import Components
from rlplug.runs.periodic import PeriodicTasks
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import InlinePlugins, Request
from rlplug.seeding import derive, set_random_state
from rlplug.tracking.location import RunFolder, runs_folder, runs_in
from rlplug.tracking.status import RunLock, RunStatus

if TYPE_CHECKING:
    from rlplug.plugin import AddOn

__all__ = ["FinishedError", "Resumed", "resumable", "resumable_by_name"]

_LOG = logging.getLogger("rlplug")

_OF_OPTIMIZERS = ("algorithm.", "addons.")
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
    is_own: bool
    """Whether this user wrote or trusts the checkpoint, so that a pickle in it is read."""
    rerunnable: bool = True
    learners: Mapping[str, Any] = attrs.field(init=False, factory=dict)
    """The state of the other learners in the checkpoint; empty if there was one alone."""
    _training: Mapping[str, Any] = attrs.field(init=False, factory=dict)
    _warnings: list[str] = attrs.field(init=False, factory=list)
    _lost: str = attrs.field(init=False, default="")
    """Why the replay buffer is empty; empty if it is not."""

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
            self._warnings.append("there is no checkpoint: the run starts from its first step.")
            return
        with reading(self.checkpoint, "training state"):
            self._training = training = read_training(self.checkpoint)
            learner, policy, run = training["learner"], training["policy"], training["run"]
            if self.drift:
                # Another version of a plugin was allowed.
                learner["plugins"] = packages(components.calls.participants)
            # The groups of a saved optimizer have the settings that it was saved with.
            options_changed = any(name.startswith(_OF_OPTIMIZERS) for name in self.changed)
            components.set_common(
                learner, policy["normalization"], run, keep_settings=options_changed
            )
            self.learners = run.get("learners", {})
            reset = self._restore_experience(self.checkpoint, components, training)
        here = f"at step {self.step:,}"
        if self._lost:
            self._warnings.append(f"the replay buffer is empty {here}: {self._lost.rstrip('.:')}.")
        if reset:
            self._warnings.append(
                f"episodes start anew {here}: the environments are not restored ({reset})."
            )

    def _restore_experience(
        self, checkpoint: Path, components: Components, training: Mapping[str, Any]
    ) -> str:
        """Restore feed and sampler; why its environments were reset, or nothing."""
        before, now = self.learners.get("size", 1), self.prepared.config.scale.learners
        if before != now:
            # What is saved of each learner fits no other share of the environments.
            reset = f"the run had {before} learner{'s' if before > 1 else ''}, now it has {now}"
            components.sampler.start(self.seed)
            if components.feed.rows is not None:
                self._lost = reset
                components.feed.set_state_without_rows(training["feed"], empty=True)
            return reset
        saved = training["run"]["sampler"]
        reason = self._why_without_pickle(
            training["policy"]["environment"]["name"], components.environments.name
        )
        if reason:
            saved = {**saved, "environments": b"", "not_saved": reason}
        reset = components.sampler.set_state(saved, seed=self.seed)
        self._lost = restore_feed(checkpoint, components.feed, training["feed"])
        return reset

    def _why_without_pickle(self, saved: str, name: str) -> str:
        """Why the environments in the checkpoint are not restored; empty if they are."""
        if not self.prepared.config.checkpoint.save_environments:
            return "checkpoint.save_environments is false"
        if not self.is_own:
            return "the pickle was written elsewhere; --trust reads it"
        changed = [name for name in self.changed if name.startswith("env.")]
        if changed:
            return f"{changed[0]} has changed"
        return "" if name == saved else f"those of {saved!r} were saved, these are {name!r}"

    def start(self, components: Components, periodic: PeriodicTasks) -> None:
        """Go on, after everything else of this process was set up."""
        # Only now is there a log that keeps them.
        for warning in self._warnings:
            _LOG.warning("rlplug: %s", warning)
        if self.checkpoint is None or self.manifest is None:
            components.sampler.start()
            return
        with reading(self.checkpoint, "training state"):
            periodic.set_state(self._training["periodic"], self.manifest)
            set_random_state(self._training["learner"]["random"], components.learner.device)
        for name in periodic.checkpoints.resume_from(self.checkpoint, replay=not self._lost):
            _LOG.warning("rlplug: a later checkpoint is set aside as %s.", name)
        self._training = {}


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
    plugins = InlinePlugins.of(algorithm, addons)
    folder = run_to_resume(str(run)).resolve()
    if folder.parent != (runs_folder() / "work").resolve():
        home = folder.parent.parent if folder.parent.name == "work" else "/folder/of/runs"
        raise RequestError(
            f"run {run} is not in the runs folder {runs_folder()}: only runs started there can be "
            "resumed.",
            f"try: RLPLUG_HOME={home} rlplug resume {folder.name}, or rlplug run --init-from {run}",
        )

    def options(manifest: Manifest | None) -> Prepared:
        # The file has all options: a preset that has changed since must not override them.
        section = {"preset": "", **({"steps": steps} if steps else {})}
        request = Request(config=folder / CONFIG, flags={"run": section}, settings=tuple(settings))
        try:
            with plugins.registry.made_with({} if manifest is None else manifest.plugins):
                return prepare(request, plugins.registry, plugins.instances)
        except RequestError as error:
            error.add_hint(
                f"if it was started from Python: rlplug.resume({folder.name[:8]!r}, algorithm=…, "
                "env=…, addons=…) with the same ones"
            )
            raise

    resumed = _resumed(folder, options, trust=trust, allow_drift=allow_drift, env=env)
    resumed.rerunnable = plugins.rerunnable
    return resumed


def resumable_by_name(name: str, wanted: Prepared, *, trust: bool = False) -> Resumed | None:
    """The run of this name, to go on with these options; None if there is none yet."""
    runs = [run for run in runs_in(runs_folder()) if run.run_name == name]
    if not runs:
        return None
    if len(runs) > 1:
        raise RequestError(
            f"{len(runs)} runs are named {name!r}: {', '.join(run.run_id for run in runs)}.",
            "try: rlplug resume with the id of one of them, or another name",
        )
    return _resumed(runs[0].path.resolve(), lambda _: wanted, trust=trust)


def _resumed(
    folder: Path,
    options: Callable[[Manifest | None], Prepared],
    *,
    trust: bool,
    allow_drift: bool = False,
    env: EnvMaker = "",
) -> Resumed:
    # Before anything is read: another process may be writing it.
    lock = RunLock.take(folder)
    try:
        checkpoint = newest_valid(folder, folder.name)
        manifest = None if checkpoint is None else read_manifest(checkpoint)
        own = [admit(path, OF_RUN, trust=trust) for path in (folder, checkpoint) if path]
        new = options(manifest)
        was = flat(read_toml(folder / CONFIG))
        saved = was if checkpoint is None else flat(read_toml(checkpoint / CONFIG))
        drift = _drift(was, new, manifest)
        run, name = RunFolder.read(folder), describe_env(env or new.config.run.env)
        if run is not None and run.about.env and name and run.about.env != name:
            # A callable is no option.
            drift.setdefault("run.env", f"{json.dumps(run.about.env)} → {json.dumps(name)}")
        resumed = Resumed(
            folder=folder,
            lock=lock,
            prepared=new,
            drift=drift,
            changed=_drift(saved, new, manifest),
            checkpoint=checkpoint,
            manifest=manifest,
            is_own=all(own),
        )
        if drift and not allow_drift:
            changes = "; ".join(f"{option}: {change}" for option, change in drift.items())
            raise RequestError(
                f"run {folder.name} would go on with other options: {changes}.",
                f"try: rlplug resume {folder.name[:8]} with --allow-drift, which records the "
                "change, or with what it was started with",
            )
        before, now = saved["sampling.num_envs"], new.config.sampling.num_envs
        if checkpoint is not None and before != now:
            # Whatever is saved per environment fits no other number.
            raise RequestError(
                f"run {folder.name} was saved with sampling.num_envs = {before} and cannot go on "
                f"with {now}.",
                f"try: leave it out, or rlplug run --init-from {folder.name}",
            )
        _refuse_finished(resumed, was["run.steps"])
    except BaseException:
        lock.release()
        raise
    return resumed


def _drift(was: Mapping[str, Any], new: Prepared, manifest: Manifest | None) -> dict[str, str]:
    """Options and plugins that are not what they were: name → `old → new`.

    An option that the file lacks, as a later version has brought it, had its default.
    """
    now = flat(tomllib.loads(masked_toml(new.config)))
    drift = {
        name: f"{json.dumps(was.get(name))} → {json.dumps(value)}"
        for name, value in now.items()
        if not _FREE.fullmatch(name) and (was[name] != value if name in was else name in new.chosen)
    }
    # A run may be made longer.
    if now["run.steps"] > was["run.steps"]:
        del drift["run.steps"]
    for participant in (new.algorithm, *new.addons):
        package = "" if manifest is None else manifest.plugins.get(participant.name, "")
        if package and package != participant.found.package:
            drift[f"plugin {participant.name}"] = f"{package} → {participant.found.package}"
    return drift


def _refuse_finished(resumed: Resumed, before: int) -> None:
    run, steps = resumed.folder.name, resumed.prepared.config.run.steps
    if steps < before and steps < resumed.step:
        raise RequestError(
            f"run {run} is at step {resumed.step:,} already, beyond {steps:,}.",
            f"try: --steps {2 * resumed.step}",
        )
    status = RunStatus.read(resumed.folder)
    if status is None or status.status != "FINISHED" or steps > before or resumed.drift:
        return
    if resumed.step < status.step:
        # Its last checkpoint could not be written: what it learned since is not on the disk.
        return
    reached = f"run {run} finished at step {status.step:,}"
    if status.step >= steps:
        raise FinishedError(
            f"{reached}: there is nothing to resume.",
            f"try: rlplug resume {run} --steps {2 * max(status.step, 1)}",
        )
    raise FinishedError(
        f"{reached} of {steps:,}, when it reached a limit: {status.stop_reason}.",
        f"try: rlplug resume {run} --set LIMIT=VALUE --allow-drift",
    )
