"""The events of a run: what happens, for those who watch.

The core's own console and tracking listen to these, as any add-on can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.config.sections import RunConfig
from rlplug.hooks import hookspec
from rlplug.registry import Participant

if TYPE_CHECKING:
    from rlplug.plugin import LearnerView

__all__ = ["RunHooks", "RunInfo"]


class RunHooks:
    """What happens in a run. Results are ignored; plugins are told in their order."""

    @hookspec
    def run_started(self, run: Any) -> None:
        """The run is about to take its first environment step.

        Called: once, after modules are built and everything has been checked; again on resume.
        run: a `RunInfo`: `run_id`, `folder`, `config`, `participants`, `environment`, `steps`,
            `step` (where it starts), `resumed`.

        Example:
            @hookimpl
            def run_started(self, run):
                self.file = open(run.folder / "notes.txt", "a")
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def update_finished(
        self, step: int, update: int, results: Mapping[str, Mapping[str, Any]], learner: LearnerView
    ) -> None:
        """The learner has finished one update.

        Called: after every update, which for a stream of single steps is every step: be quick,
            or listen to `metrics_reported` instead.
        step: environment steps so far.
        update: updates so far, from 1.
        results: module id → metric → value; tensors may still be on the device.

        Example:
            @hookimpl
            def update_finished(self, results):
                self.losses.append(results["default"].get("loss"))
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of the last stretch of the run are known.

        Called: about 320 times a run, at steps fixed by the run's length, so that the curves of
            several seeds coincide; and once at the end.
        step: the environment step that these numbers stand for.
        metrics: name → mean over the stretch, as plain numbers.

        Example:
            @hookimpl
            def metrics_reported(self, step, metrics):
                print(step, metrics.get("rollout/reward_mean"))
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def evaluation_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Greedy episodes in environments of their own have been played.

        Called: after each evaluation.
        step: environment steps so far.
        metrics: `eval/return_mean` and its companions.

        Example:
            @hookimpl
            def evaluation_finished(self, step, metrics):
                self.best = max(self.best, metrics["eval/return_mean"])
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def checkpoint_saved(self, step: int, path: Path) -> None:
        """A checkpoint is complete on disk.

        Called: after each one, before it is uploaded.
        step: environment steps so far.
        path: its folder.

        Example:
            @hookimpl
            def checkpoint_saved(self, path):
                shutil.copytree(path, self.mirror / path.name)
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def run_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """The run reached its last step.

        Called: once, after the last metrics and before files are closed.
        step: environment steps taken.
        metrics: the last value of each.

        Example:
            @hookimpl
            def run_finished(self, step, metrics):
                self.file.close()
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def run_failed(self, step: int, error: BaseException) -> None:
        """The run ends early: by an error, or because it was interrupted.

        Called: once, instead of `run_finished`.
        step: environment steps taken.
        error: what ended it; a `KeyboardInterrupt` if a person did.

        Example:
            @hookimpl
            def run_failed(self, error):
                self.file.write(f"ended by {error!r}")
        """
        raise AssertionError("a specification is never called")


@attrs.frozen(kw_only=True)
class RunInfo:
    """One run as its listeners see it."""

    run_id: str
    folder: Path
    """Where the run keeps its files."""
    config: RunConfig
    participants: tuple[Participant, ...]
    """The algorithm, then the add-ons in order."""
    hook_order: Mapping[str, list[str]]
    environment: str
    """The environment's id, or a description of the callable that made it."""
    feed: str = ""
    """What the feed keeps and what that costs, in one line; empty if it keeps nothing."""
    steps: int
    """Environment steps the run will have taken at its end."""
    progress: Callable[[], int]
    """Environment steps taken so far, for displays that look by themselves."""
    step: int = 0
    """Environment steps already taken, if the run was resumed."""
    resumed: bool = False
    rerunnable: bool = True
    """False if it was started from Python with classes or instances that have no installed name."""
