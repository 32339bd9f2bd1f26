"""The training state in a checkpoint, with which a run goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlplug.checkpoint.manifest import (
    POLICY,
    STEPS,
    TRAINING,
    read_manifest,
    reading,
    replay_folder,
    verify,
)
from rlplug.checkpoint.policy import ACTING
from rlplug.checkpoint.replay_files import restore_rows
from rlplug.errors import RequestError
from rlplug.feeds import OpenFeed
from rlplug.trees import read_tree

__all__ = ["newest_valid", "read_training", "restore_feed"]

_LOG = logging.getLogger("rlplug")


def newest_valid(folder: Path, run_id: str = "") -> Path | None:
    """The newest checkpoint in a run's folder whose files are all as they were written.

    Each one that is not is told in a warning; one of another run is none. Only if there is no
    other, one without its replay buffer. None if there is no checkpoint at all.
    """
    paths = sorted((folder / "checkpoints").glob(STEPS), reverse=True)
    if not paths:
        return None
    for replay in (True, False):
        problems: list[str] = []
        for path in paths:
            try:
                manifest = verify(path, run_id, resume=True, replay=replay)
            except RequestError as error:
                problems.append(error.message)
                continue
            for message in problems:
                _LOG.warning(
                    "rlplug: warning: %s The run goes on from step %s.",
                    message,
                    f"{manifest.step:,}",
                )
            return path
    raise RequestError(
        f"no checkpoint in {folder / 'checkpoints'} can be resumed from:",
        *problems,
        "try: the version of rlplug that wrote them, or a new run with --init-from",
    )


def read_training(checkpoint: Path) -> dict[str, Any]:
    """All that training goes on with, without the rows of a replay buffer; nothing is unpickled.

    `learner`: what `Learner.set_state` takes; `policy`: what acting needs besides; `periodic`:
    the best evaluation; `feed`; `run`: what the run itself keeps.
    """
    with reading(checkpoint, "training state"):
        policy = read_tree(checkpoint / POLICY)
        training = read_tree(checkpoint / TRAINING)
        parts = {name: training.pop(name) for name in ("periodic", "feed", "run")}
        learner = {**training, **{name: policy.pop(name) for name in ACTING}}
    return {"learner": learner, "policy": policy, **parts}


def restore_feed(checkpoint: Path, feed: OpenFeed, saved: Mapping[str, Any]) -> str:
    """Restore a feed, with the state that `read_training` gave.

    Returns why its replay buffer is empty, or an empty text if it is not.
    """
    rows, folder = feed.rows, replay_folder(checkpoint)
    files, reason = read_manifest(checkpoint).replay, ""
    with reading(checkpoint, "feed"):
        if rows is None:
            feed.set_state(saved)
            return ""
        if not files:
            reason = "it was not saved (checkpoint.save_replay)"
        elif not any((folder / name).exists() for name in files):
            reason = (
                f"its files are not in {folder} (only the latest checkpoints keep theirs, and only "
                "checkpoint.upload_replay uploads them)"
            )
        else:
            try:
                with reading(checkpoint, "replay buffer"):
                    restore_rows(folder, files, feed)
            except RequestError as error:
                rows.clear()
                reason = error.message
        feed.set_state_without_rows(saved, empty=bool(reason))
    return reason
