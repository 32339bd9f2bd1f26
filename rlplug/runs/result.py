"""The result of a run, and the exception that brings it when a signal ended the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.errors import RequestError
from rlplug.quantities import format_number
from rlplug.runs.recorded import RecordedRun
from rlplug.runs.signals import Interrupted
from rlplug.tracking.location import RunFolder
from rlplug.tracking.reading import read_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rlplug.plugin import Module
    from rlplug.runs.evaluate import Evaluated
    from rlplug.serving import Policy
    from rlplug.tracking import Status

__all__ = ["RunInterrupted", "RunResult"]


@attrs.frozen(kw_only=True, repr=False)
class RunResult:
    """The outcome of one run."""

    run_id: str
    status: Status
    step: int
    """Environment steps taken."""
    metrics: Mapping[str, float]
    """The last value of each metric."""
    module: Module
    """The module at the end of training."""
    folder: Path
    """The folder with the run's files."""
    stopped: str = ""
    """Why training was stopped early; empty if it was not."""
    checkpoints: tuple[int, ...] = ()
    """The steps of the checkpoints that are on disk."""
    best: tuple[int, float] | None = None
    """Step and mean return of the best evaluation. `load` loads its checkpoint, if it is there."""
    nonfinite_step: int | None = None
    """The first step at which weights were found not to be finite; None if they always were."""
    nonfinite_updates: int = 0
    """Updates with gradients that were not finite."""
    engine: str = ""
    """What computed gradients (`arrays`, `torch`, `compiled`), and why; empty without gradients."""
    lost: int = 0
    """Number of metric values that are neither on the disk nor in MLflow."""
    time_split: Mapping[str, float] = attrs.field(factory=dict)
    """Seconds spent on `step`, `act`, `prepare`, `learn`, `track` and `evaluate`."""
    profile: tuple[Path, ...] = ()
    """Traces and tables of `--profile`, the latest last."""
    where: tuple[str, ...] = ()
    """Where to look at the run, line by line."""

    @property
    def can_be_resumed(self) -> bool:
        """Whether its folder is still there."""
        return (self.folder / "run.json").is_file()

    @property
    def saved(self) -> str:
        """Which checkpoint is on disk, for messages."""
        if not self.checkpoints:
            return "there is no checkpoint"
        return f"checkpoint of step {self.checkpoints[-1]:,}"

    def history(self, *, frame: bool = False) -> Any:
        """Metric → its steps and values as arrays; with `frame`, a pandas DataFrame by step."""
        return self.recorded().history(frame=frame)

    def plot(self) -> Figure:
        """The learning curve."""
        return self.recorded().plot()

    def load(self, **options: Any) -> Policy:
        """The policy of the best checkpoint; options of `rlplug.load`."""
        return self.recorded().load(**options)

    def evaluate(self, **options: Any) -> Evaluated:
        """Greedy episodes with the policy of the best checkpoint; options of `rlplug.evaluate`."""
        return self.recorded().evaluate(**options)

    def recorded(self) -> RecordedRun:
        """The run as it is recorded in its folder."""
        run = RunFolder.read(self.folder)
        if run is None:
            raise RequestError(
                f"{self.folder} is no longer the folder of run {self.run_id}.",
                "try: result.metrics has the last values",
            )
        return RecordedRun.of(read_record(run))

    def __repr__(self) -> str:
        best = ""
        if self.best is not None:
            best = f", best {format_number(self.best[1])} at step {self.best[0]:,}"
        status = f"{self.status} at step {self.step:,}{best}"
        return f"<RunResult {self.run_id[:8]}: {status}, in {self.folder}>"

    def _repr_html_(self) -> str | None:
        # Without its folder, notebooks show the text.
        return self.recorded()._repr_html_() if RunFolder.read(self.folder) else None

    def as_json(self) -> dict[str, Any]:
        """Everything except the module, as JSON values."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "step": self.step,
            "checkpoint": self.checkpoints[-1] if self.checkpoints else None,
            "stopped": self.stopped,
            "best": self.best and {"step": self.best[0], "return_mean": self.best[1]},
            "nonfinite_step": self.nonfinite_step,
            "nonfinite_updates": self.nonfinite_updates,
            "metrics": dict(self.metrics),
            "time_split": dict(self.time_split),
            "profile": [str(file) for file in self.profile],
            "folder": str(self.folder),
        }


class RunInterrupted(KeyboardInterrupt):
    """A run was ended by a signal; how far it came, and what of it is on disk, is in `result`."""

    def __init__(self, result: RunResult, signal: Interrupted, *, at_once: bool = False) -> None:
        super().__init__(f"interrupted at step {result.step:,}")
        self.result = result
        self.number = signal.number
        """The first signal."""
        self.exit_code = signal.exit_code
        self.at_once = at_once
        """Whether the run was left as it stood, by a second signal or before its first update."""
