"""Events of a run. The core's console and tracking listen to them, as add-ons can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from rlplug.config.sections import RunConfig
from rlplug.hooks import hookspec
from rlplug.registry import Participant

if TYPE_CHECKING:
    from rlplug.plugin import LearnerView

__all__ = ["RunHooks", "RunInfo"]


class RunHooks(Protocol):
    """Events of a run, for plugins that watch it. Return values are ignored."""

    @hookspec
    def run_started(self, run: Any) -> None:
        """The run is about to start.

        Called: once, after all checks and before the first environment step; again on resume.
        run: a `RunInfo`: `run_id`, `folder`, `config`, `participants`, `environment`, `steps`,
            `step` (where it starts), `resumed`.

        Example:
            @hookimpl
            def run_started(self, run):
                self.file = open(run.folder / "notes.txt", "a")
        """

    @hookspec
    def update_finished(
        self, step: int, update: int, results: Mapping[str, Mapping[str, Any]], learner: LearnerView
    ) -> None:
        """The learner has finished one update.

        Called: after every update, which may be every environment step: be fast, or implement
            `metrics_reported` instead.
        step: environment steps so far.
        update: updates so far, from 1.
        results: module id → metric → value; tensors may still be on the device.

        Example:
            @hookimpl
            def update_finished(self, results):
                self.losses.append(results["default"].get("loss"))
        """

    @hookspec
    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics were reported.

        Called: about 320 times per run, at steps that depend only on its length, so that curves of
            several seeds align; and once at the end.
        step: environment steps so far.
        metrics: name → mean since the last report, as plain numbers.

        Example:
            @hookimpl
            def metrics_reported(self, step, metrics):
                print(step, metrics.get("rollout/reward_mean"))
        """

    @hookspec
    def evaluation_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation has finished.

        Called: after each evaluation.
        step: environment steps so far.
        metrics: `eval/return_mean` and the other evaluation metrics.

        Example:
            @hookimpl
            def evaluation_finished(self, step, metrics):
                self.best = max(self.best, metrics["eval/return_mean"])
        """

    @hookspec
    def checkpoint_saved(self, step: int, path: Path) -> None:
        """A checkpoint is complete on disk.

        Called: for each checkpoint, between updates after it was written, before its upload.
        step: environment steps so far.
        path: its folder.

        Example:
            @hookimpl
            def checkpoint_saved(self, path):
                shutil.copytree(path, self.mirror / path.name)
        """

    @hookspec
    def run_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """The run has finished.

        Called: once, after the last report and before files are closed.
        step: environment steps taken.
        metrics: the last value of each metric.

        Example:
            @hookimpl
            def run_finished(self, step, metrics):
                self.file.close()
        """

    @hookspec
    def run_failed(self, step: int, error: BaseException) -> None:
        """The run failed or was interrupted.

        Called: once, instead of `run_finished`.
        step: environment steps taken.
        error: the exception; a `KeyboardInterrupt` for signals such as Ctrl-C's and SIGTERM.

        Example:
            @hookimpl
            def run_failed(self, error):
                self.file.write(f"ended by {error!r}")
        """


@attrs.frozen(kw_only=True)
class RunInfo:
    """What listeners are told about a run at its start."""

    run_id: str
    folder: Path
    """The run's folder."""
    config: RunConfig
    participants: tuple[Participant, ...]
    """The algorithm, then the add-ons in order."""
    hook_order: Mapping[str, list[str]]
    environment: str
    """The environment's id, or a description of the callable that made it."""
    feed: str = ""
    """The feed's buffers and their memory, in one line; empty without buffers."""
    device: str = "cpu"
    """The device of the learner."""
    steps: int
    """Total number of environment steps."""
    progress: Callable[[], int]
    """Returns the environment steps taken so far, for progress bars."""
    step: int = 0
    """Environment steps before this start, if the run was resumed."""
    unit: str = "steps"
    """What a step is: a run that learns from a log counts its rows."""
    resumed: bool = False
    rerunnable: bool = True
    """False if it was started from Python with plugins or an environment that are not installed."""
