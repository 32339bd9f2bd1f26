"""The videos of a run: one of its best evaluation, and one of its last step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from rlplug.envs import Environments
from rlplug.errors import RequestError
from rlplug.evaluation.video import record
from rlplug.nn.layers import evaluating
from rlplug.plugin import Module
from rlplug.tracking import Tracking
from rlplug.tracking.activity import Activities

__all__ = ["Videos"]

Kind: TypeAlias = Literal["best", "last"]

_LOG = logging.getLogger("rlplug")


@attrs.frozen(kw_only=True, eq=False)
class Videos:
    """Records greedy episodes, and deletes the videos that a newer one of its kind replaces."""

    make_environments: Callable[[], Environments]
    tracking: Tracking
    activities: Activities
    seed: int

    def record(self, kind: Kind, step: int, module: Module, normalize: Any) -> None:
        """Record one episode as `videos/KIND-step-STEP.mp4`, or warn why that failed."""
        file = self._folder / f"{kind}-step-{step:012d}.mp4"
        try:
            with self.activities.doing("recording a video"), evaluating(module):
                record(
                    module,
                    self.make_environments,
                    file,
                    seed=self.seed,
                    timestep=step,
                    normalize=normalize,
                )
        except (OSError, RequestError) as error:
            # Recording was tried at the start of the run: most likely the disk is full.
            _LOG.warning("rlplug: no video at step %s: %s", f"{step:,}", error)
        else:
            self.delete(kind, but=file.name)

    def delete(self, kind: Kind, *, but: str = "") -> None:
        """Delete the videos of a kind, here and in MLflow."""
        for file in self._folder.glob(f"{kind}-step-*.mp4"):
            if file.name != but:
                _delete(file)

    def delete_after(self, step: int) -> None:
        """Delete what a run recorded that now goes on from an earlier step."""
        for kind in ("best", "last"):
            for file in self._folder.glob(f"{kind}-step-*.mp4"):
                if int(file.stem.rpartition("-")[2]) > step:
                    _delete(file)

    @property
    def _folder(self) -> Path:
        return self.tracking.folder / "videos"


def _delete(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()
