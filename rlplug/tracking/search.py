"""Runs as MLflow has them: found by a condition, and the history of their metrics."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplug.errors import RequestError
from rlplug.review.record import RunAbout, RunRecord, best_evaluation
from rlplug.tracking.client import asking
from rlplug.tracking.location import is_missing, sqlite_file, tracking_uri, without_secrets
from rlplug.tracking.reap import STALE_SECONDS
from rlplug.tracking.record import HEARTBEAT_TAG, LOCAL_ID
from rlplug.tracking.recorded import recorded_runs
from rlplug.tracking.status import RUNNING, milliseconds, now
from rlplug.tracking.store import PENDING_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = [
    "is_shared",
    "known_runs",
    "merged",
    "tracked_files",
    "tracked_runs",
    "tracked_tags",
    "tracked_values",
]

_RUNS = "tags.`rlplug.kind` = 'run'"
_PAGE = 1000


def known_runs(root: Path, warn: Callable[[str], None]) -> list[RunRecord]:
    """The runs of a runs folder, and those of a tracking server, newest first.

    A database in a file has no others, and is not opened. Warns if the server does not answer.
    """
    here = recorded_runs(root)
    try:
        uri = tracking_uri("", root)
        return merged(here, tracked_runs(uri)) if is_shared(uri) else here
    except RequestError as error:
        if not here:
            raise
        warn(f"{error.message}\n  These are the runs in {root} alone.")
        return here


def merged(here: Sequence[RunRecord], tracked: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of a folder, and those of MLflow that are not in it, newest first."""
    known = {id_ for run in here for id_ in (run.run_id, run.tracked_id)}
    both = [*here, *(run for run in tracked if run.run_id not in known)]
    return sorted(both, key=lambda run: run.started, reverse=True)


def is_shared(uri: str) -> bool:
    """Whether runs of other machines may be recorded there."""
    return sqlite_file(uri) is None


def tracked_runs(uri: str, condition: str = "", *, most: int = 5000) -> list[RunRecord]:
    """The runs at a tracking URI that meet a condition of MLflow's, newest first."""
    wanted = f"{_RUNS} and {condition}" if condition else _RUNS
    if is_missing(uri):
        return []
    with _asking(uri) as client:
        experiments = [one.experiment_id for one in client.search_experiments()]
        found: list[Run] = []
        token: str | None = None
        while experiments and len(found) < most:
            page = client.search_runs(
                experiments, wanted, max_results=min(_PAGE, most), page_token=token
            )
            found += page
            token = page.token
            if not token:
                break
        return [_record(run, uri) for run in found]


def tracked_values(
    uri: str, run_id: str, names: Sequence[str] = ()
) -> Iterator[tuple[int, Mapping[str, float]]]:
    """All values of the metrics of a run, or of those named, each with its step."""
    if is_missing(uri):
        return
    with _asking(uri) as client:
        for name in sorted(client.get_run(run_id).data.metrics):
            if not names or name in names:
                for point in client.get_metric_history(run_id, name):
                    yield point.step, {name: point.value}


def tracked_tags(uri: str, run_id: str) -> dict[str, str]:
    """The tags of a run."""
    if is_missing(uri):
        return {}
    with _asking(uri) as client:
        return dict(client.get_run(run_id).data.tags)


def tracked_files(uri: str, run_id: str, folder: str) -> list[str]:
    """The names of what is in a folder of the artifacts of a run."""
    if is_missing(uri):
        return []
    with _asking(uri) as client:
        found = client.list_artifacts(run_id, folder)
        return [one.path.rpartition("/")[2] for one in found]


def _asking(uri: str) -> contextlib.AbstractContextManager[MlflowClient]:
    return asking(
        uri,
        f"MLflow at {without_secrets(uri)} cannot be asked for runs",
        "try: again later, or unset MLFLOW_TRACKING_URI to see the runs in the runs folder",
    )


def _record(run: Run, uri: str) -> RunRecord:
    tags, metrics, params = run.data.tags, run.data.metrics, run.data.params
    steps = (one.step for one in run.data.to_proto().metrics)
    return RunRecord(
        run_id=run.info.run_id,
        name=run.info.run_name or run.info.run_id,
        about=RunAbout(
            algorithm=tags.get("rlplug.algo", ""),
            env=tags.get("rlplug.env", ""),
            seed=_whole(tags.get("rlplug.seed", "")),
            group=tags.get("rlplug.group", ""),
            steps=_whole(tags.get("rlplug.steps", "") or params.get("run.steps", "")),
            options=_options(tags.get("rlplug.options", ""), params),
        ),
        status="stale" if _is_stale(run) else run.info.status,
        reason=tags.get("rlplug.stop_reason", ""),
        started=_moment(run.info.start_time),
        ended=_moment(run.info.end_time),
        step=max([*steps, _whole(tags.get("rlplug.stopped_at_step", ""))], default=0),
        best=best_evaluation(metrics),
        latest=dict(metrics),
        pending=PENDING_TAG in tags,
        folder=_folder(tags.get("rlplug.root", ""), tags.get(LOCAL_ID, run.info.run_id)),
        uri=without_secrets(uri),
        experiment_id=run.info.experiment_id,
    )


def _is_stale(run: Run) -> bool:
    """Whether a run in progress has not been heard of for a quarter of an hour."""
    heard = milliseconds(run.data.tags.get(HEARTBEAT_TAG, ""))
    if run.info.status != RUNNING or heard is None:
        return False
    return time.time() - heard / 1000 > STALE_SECONDS


def _options(shown: str, params: Mapping[str, str]) -> dict[str, str]:
    """The options of the tag, by the full names and values of the params where these are known."""
    options = {}
    for name, value in re.findall(r"(?:^| )([\w.\-]+)=(.*?)(?= [\w.\-]+=|$)", shown):
        path = next((one for one in params if one == name or one.endswith(f".{name}")), name)
        options[path] = params.get(path, value)
    return options


def _folder(root: str, run_id: str) -> Path | None:
    """The folder of the run, if it is on this machine."""
    folder = Path(root) / "work" / run_id
    return folder if root and (folder / "run.json").is_file() else None


def _whole(text: str) -> int:
    try:
        return int(json.loads(text))
    except (ValueError, TypeError):
        return 0


def _moment(since_epoch: Any) -> str:
    return now(since_epoch / 1000) if since_epoch else ""
