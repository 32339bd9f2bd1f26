"""Checkpoints that tests write without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlplug.checkpoint import Manifest
from rlplug.checkpoint.checkpoints import Checkpoints, Snapshot


def snapshot_at(step: int, score: float | None = None, run_id: str = "r", **more: Any) -> Snapshot:
    """A checkpoint with an evaluation of this score, or without; `more` are other parts."""
    scored = {} if score is None else {"eval/return_mean": score}
    manifest = Manifest(
        run_id=run_id,
        step=step,
        updates=step,
        plugins={},
        evaluation={**scored, **more.pop("evaluation", {})},
    )
    parts = {"policy": {"weights": torch.arange(step)}, "training": {"optimizer": {}}, **more}
    return Snapshot(manifest=manifest, config="[run]\n", **parts)


def write(checkpoints: Checkpoints, step: int, score: float | None = None, **more: Any) -> Path:
    """The folder of a checkpoint that is on the disk."""
    checkpoints.start(snapshot_at(step, score, **more))
    (*_, committed) = checkpoints.finished(wait=True)
    if committed.error is not None:
        raise committed.error
    assert committed.path is not None
    return committed.path
