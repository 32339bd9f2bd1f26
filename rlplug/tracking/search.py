"""Runs as MLflow has them: found by a condition, and the history of their metrics."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplug.errors import RequestError
from rlplug.review.record import RunAbout, RunRecord, best_evaluation
from rlplug.tracking.client import asking
from rlplug.tracking.location import is_missing, sqlite_file, tracking_uri, without_secrets
from rlplug.tracking.lock import STALE_SECONDS
from rlplug.tracking.record import HEARTBEAT_TAG, LOCAL_ID
from rlplug.tracking.recorded import recorded_runs
from rlplug.tracking.status import RUNNING, milliseconds, now
from rlplug.tracking.store import PENDING_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

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
    if is_missing(uri):
        return []
    wanted = " and ".join(filter(None, (_RUNS, condition)))
    with _asking(uri) as client:
        experiments = [one.experiment_id for one in client.search_experiments()]
        runs: list[Run] = []
        token: str | None = ""
        while experiments and token is not None and len(runs) < most:
            page = client.search_runs(
                experiments, wanted, max_results=min(_PAGE, most), page_token=token or None
            )
            runs += page
            token = page.token or None
        return [_record(run, uri) for run in runs]


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
        return [Path(one.path).name for one in client.list_artifacts(run_id, folder)]


def _asking(uri: str) -> contextlib.AbstractContextManager[MlflowClient]:
    return asking(
        uri,
        f"MLflow at {without_secrets(uri)} cannot be asked for runs",
        "try: again later, or unset MLFLOW_TRACKING_URI to see the runs in the runs folder",
    )


def _record(run: Run, uri: str) -> RunRecord:
    info, data = run.info, run.data
    tags = {name.removeprefix("rlplug."): value for name, value in data.tags.items()}
    steps = [one.step for one in data.to_proto().metrics]
    folder = Path(tags.get("root", ""), "work", data.tags.get(LOCAL_ID, info.run_id))
    heard = milliseconds(data.tags.get(HEARTBEAT_TAG, ""))
    is_stale = heard is not None and time.time() - heard / 1000 > STALE_SECONDS
    return RunRecord(
        run_id=info.run_id,
        name=info.run_name or info.run_id,
        about=RunAbout(
            algorithm=tags.get("algo", ""),
            env=tags.get("env", ""),
            seed=_whole(tags.get("seed", "")),
            group=tags.get("group", ""),
            steps=_whole(tags.get("steps", "") or data.params.get("run.steps", "")),
            options=_options(tags.get("options", ""), data.params),
        ),
        status="stale" if info.status == RUNNING and is_stale else info.status,
        reason=tags.get("stop_reason", ""),
        started=_moment(info.start_time),
        ended=_moment(info.end_time),
        step=max([*steps, _whole(tags.get("stopped_at_step", ""))], default=0),
        best=best_evaluation(data.metrics),
        latest=dict(data.metrics),
        pending=PENDING_TAG in data.tags,
        # If it is on this machine.
        folder=folder if "root" in tags and (folder / "run.json").is_file() else None,
        uri=without_secrets(uri),
        experiment_id=info.experiment_id,
    )


def _options(shown: str, params: Mapping[str, str]) -> dict[str, str]:
    """The options of the tag, by the full names and values of the params where these are known."""
    options = {}
    for name, value in re.findall(r"(?:^| )([\w.\-]+)=(.*?)(?= [\w.\-]+=|$)", shown):
        path = next((one for one in params if one == name or one.endswith(f".{name}")), name)
        options[path] = params.get(path, value)
    return options


def _whole(text: str) -> int:
    return int(text) if text.lstrip("-").isdecimal() else 0


def _moment(since_epoch: Any) -> str:
    return now(since_epoch / 1000) if since_epoch else ""
