"""An add-on that writes TensorBoard event files, and a run that it watches.

python examples/tensorboard_events.py          then: tensorboard --logdir rlplug_runs/work

It needs tensorboardX to write (pip install tensorboardX), and tensorboard to look.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from rlplug import AddOn, hookimpl, run


class TensorBoard(AddOn):
    """Writes all that is reported of a run as events, into the folder of the run."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.writer: Any = None

    @hookimpl
    def run_started(self, run: Any) -> None:
        # What a resumed run reports again replaces what followed its checkpoint.
        again = {"purge_step": run.step + 1} if run.resumed else {}
        self.writer = SummaryWriter(str(run.folder / "tensorboard"), **again)
        self.writer.add_text("options", f"```\n{run.config}\n```", run.step)

    @hookimpl
    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    @hookimpl
    def evaluation_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics_reported(step, metrics)

    @hookimpl
    def run_finished(self) -> None:
        self.writer.close()

    @hookimpl
    def run_failed(self) -> None:
        self.writer.close()


if __name__ == "__main__":
    result = run("linucb", steps=2_000, seed=1, addons=[TensorBoard()])
    events = [Path(one) for one in (result.folder / "tensorboard").glob("events.*")]
    print(f"{len(events)} event file of {sum(one.stat().st_size for one in events):,} bytes")
    print(f"look at it: tensorboard --logdir {result.folder.parent}")
