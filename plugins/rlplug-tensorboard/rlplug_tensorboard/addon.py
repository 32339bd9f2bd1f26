"""TensorBoard: the events of a run that it listens to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlplug import AddOn, hookimpl

__all__ = ["TensorBoard"]


class TensorBoard(AddOn):
    """Writes all metrics of a run as TensorBoard events, into the folder of the run."""

    neutral: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._writer: Any = None

    @hookimpl
    def run_started(self, run: Any) -> None:
        """Opens the file, and writes the options as a text."""
        from tensorboardX import SummaryWriter

        # What a resumed run reports again replaces what followed its checkpoint.
        again = {"purge_step": run.step + 1} if run.resumed else {}
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), **again)
        self._writer.add_text("options", f"```\n{run.config}\n```", run.step)

    @hookimpl
    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes each metric as a scalar."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    @hookimpl
    def evaluation_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes those of an evaluation."""
        self.metrics_reported(step, metrics)

    @hookimpl
    def run_finished(self) -> None:
        """Closes the file."""
        self._close()

    @hookimpl
    def run_failed(self) -> None:
        """Closes the file."""
        self._close()

    @hookimpl
    def save_state(self) -> Mapping[str, Any]:
        """Nothing: what was written is in the files. The writer has a thread, which changes it."""
        return {}

    @hookimpl
    def load_state(self, state: Mapping[str, Any]) -> None:
        """A resumed run writes into a file of its own."""

    def _close(self) -> None:
        # None where the run failed before it started.
        if self._writer is not None:
            self._writer.close()
