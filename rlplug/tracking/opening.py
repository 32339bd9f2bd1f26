"""Open a run for tracking: a new one, or one that goes on; its lock is held from then on."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.secrets import masked, masked_toml
from rlplug.config.sections import RunConfig
from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.review.provenance import Provenance
from rlplug.review.record import ABOUT, RunAbout, Trial
from rlplug.tracking.journal import Journal, Recorded
from rlplug.tracking.location import (
    RUN,
    RunFolder,
    UnreachableError,
    check_reachable,
    check_writable,
    is_missing,
    read_object,
    runs_folder,
    tracking_uri,
    without_secrets,
)
from rlplug.tracking.record import (
    ABOUT_TAG,
    LOCAL_ID,
    LONGEST_TAG,
    Record,
    about_run,
    command_line,
    place_tags,
    record_of,
)
from rlplug.tracking.status import RUNNING, RunLock, RunStatus, add_tags, now, remove_half_written
from rlplug.tracking.store import TAGS_OF_THE_END, Store, StoreError, explained

CONFIG = "config.toml"
RECORD = "record.json"
"""What MLflow is to record of a run that is not in it yet."""


@attrs.frozen
class OpenRun:
    """A run whose folder is locked and whose MLflow run, if it has one, is running."""

    run: RunFolder
    uri: str
    """The tracking URI; empty: without MLflow."""
    outage: str
    """Why MLflow does not answer; empty if it does, or is not asked."""
    store: Store | None
    lock: RunLock
    status: RunStatus
    journal: Journal
    recorded: Recorded


def create_run(
    config: RunConfig,
    environment: str,
    chosen: Mapping[str, Any],
    provenance: Provenance,
    root: Path | None,
    before_creation: Callable[[], None],
    trial: Trial | None = None,
    sign: Callable[[Path], None] = lambda folder: None,
) -> OpenRun:
    """Create the folder of a run and, after `before_creation()`, its MLflow run, or raise why not.

    The folder is first: of a process that is killed between the two, it says what there is.
    """
    root = runs_folder(root)
    check_writable(root)
    uri = tracking_uri(config.tracking.uri, root) if config.tracking.enabled else ""
    outage = _outage_of(config, uri)
    own, began = uuid.uuid4().hex, time.time()
    record = record_of(config, environment, chosen, root, trial)
    # MLflow chooses the id of a run itself: a tag has the one that it was started under.
    tags = {**record.tags, LOCAL_ID: own}
    record = attrs.evolve(record, tags=tags, started=int(began * 1000))
    status = RunStatus(started=now(began))
    facts = {
        "run_id": own,
        "run_name": record.run_name,
        "experiment": record.experiment,
        "experiment_id": "",
        "uri": without_secrets(uri),
        "command": command_line(),
        "started": status.started,
        **_facts_of(record.about, provenance),
    }
    folder, store = root / "work" / own, None
    with contextlib.ExitStack() as failed, _writing(root):
        failed.callback(lambda: shutil.rmtree(folder, ignore_errors=True))
        folder.mkdir(parents=True)
        lock = failed.enter_context(RunLock.take(folder))
        write_durably(folder / CONFIG, masked_toml(config).encode())
        sign(folder)
        if uri:
            write_durably(folder / RECORD, record.content())
        status.write(folder)
        # What makes it the folder of a run is last.
        _write_facts(folder, facts)
        if uri and not outage:
            store = Store.create_run(uri, record, root, before_creation)
            failed.callback(_give_up, store)
            _write_facts(folder, {**facts, **_facts_in(store), "run_id": store.run_id})
            (folder / RECORD).unlink()
            # Under the id of MLflow, by which people know it.
            lock.release()
            folder = folder.rename(folder.with_name(store.run_id))
            lock = failed.enter_context(RunLock.take(folder))
            with explained(uri, f"MLflow cannot record run {store.run_id}"):
                store.delete_tag(LOCAL_ID)
        else:
            before_creation()
        journal = Journal(folder)
        failed.pop_all()
    return OpenRun(_read(folder), uri, outage, store, lock, status, journal, Recorded())


def continue_run(
    config: RunConfig,
    environment: str,
    chosen: Mapping[str, Any],
    provenance: Provenance,
    folder: Path,
    step: int,
    drift: Mapping[str, str],
    lock: RunLock | None,
    before_creation: Callable[[], None],
) -> OpenRun:
    """Go on with a run, after `before_creation()`, or raise why that is not possible."""
    folder = folder.absolute()
    run, root, enabled = _read(folder), folder.parent.parent, config.tracking.enabled
    if enabled and not run.is_tracked:
        raise RequestError(
            f"run {run.run_id} ({run.run_name}) was started without MLflow and cannot be added.",
            "try: --set tracking.enabled=false",
        )
    with contextlib.ExitStack() as failed, _writing(root):
        lock = failed.enter_context(RunLock.take(folder) if lock is None else lock)
        remove_half_written(folder)
        before = RunStatus.read(folder) or RunStatus(started=run.started)
        check_writable(root)
        uri, store = run.tracking_uri(config.tracking.uri) if enabled else "", None
        outage = "" if is_missing(uri) else _outage_of(config, uri)
        if uri and not outage:
            run, store = open_or_create(run, uri)
        attempt = before.attempt + 1
        status = RunStatus(started=before.started, step=step, attempt=attempt)
        keep_file(folder / CONFIG, masked_toml(config).encode())
        about = about_run(config, environment, chosen)
        # Runs are found by their group, which does not change.
        about = attrs.evolve(about, group=run.about.group or about.group, trial=run.about.trial)
        _write_facts(folder, {**read_object(folder / RUN), **_facts_of(about, provenance)})
        journal = Journal(folder)
        failed.callback(journal.close)
        recorded = Recorded.read(journal.path)
        before_creation()
        # Before MLflow says so: if this process is killed now, others find the run.
        failed.callback(before.write, folder)
        status.write(folder)
        tags = {
            **place_tags(root),
            ABOUT_TAG: json.dumps(masked(attrs.asdict(about))),
            "rlplug.attempt": str(attempt),
            "rlplug.resumed_from_step": str(step),
            **({"rlplug.param_drift": json.dumps(masked(drift))} if drift else {}),
        }
        # `sync` sets them, too, where MLflow does not answer.
        tags = {name: value[:LONGEST_TAG] for name, value in tags.items()}
        add_tags(folder, tags, without=TAGS_OF_THE_END)
        if store is not None:
            failed.callback(_give_up, store)
            with explained(uri, f"MLflow cannot continue run {store.run_id}"):
                store.continue_run(tags)
        failed.pop_all()
    return OpenRun(run, uri, outage, store, lock, status, journal, recorded)


def open_or_create(run: RunFolder, uri: str) -> tuple[RunFolder, Store]:
    """Open a run in MLflow, after creating it if it was started during an outage.

    The caller holds the lock of its folder.
    """
    if run.experiment_id:
        return run, Store.open_run(uri, run.id_in_mlflow)
    file = run.path / RECORD
    try:
        record = Record.read(file.read_bytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"run {run.run_id} ({run.run_name}) is not in MLflow, and cannot be created there: "
            f"{file} is missing or damaged.",
            "try: a copy of the file, or tracking.enabled=false",
        ) from error
    check_reachable(uri)
    store = Store.create_run(uri, record, run.path.parent.parent)
    _write_facts(run.path, {**read_object(run.path / RUN), **_facts_in(store)})
    file.unlink()
    return _read(run.path), store


def keep_file(file: Path, content: bytes) -> None:
    """Write a file; what was in it before is kept beside it, as `config-1.toml`."""
    before = file.read_bytes() if file.exists() else content
    if before != content:
        names = (f"{file.stem}-{number}{file.suffix}" for number in itertools.count(1))
        write_durably(
            next(kept for kept in map(file.with_name, names) if not kept.exists()), before
        )
    write_durably(file, content)


def _read(folder: Path) -> RunFolder:
    run = RunFolder.read(folder)
    if run is None:
        raise RequestError(
            f"{folder} is not the folder of a run: its run.json is missing or damaged.",
            "try: the folder of a run, work/RUN_ID in the runs folder",
        )
    return run


def _outage_of(config: RunConfig, uri: str) -> str:
    """Why the server does not answer, if the run may do without it; empty if it answers."""
    try:
        if uri:
            check_reachable(uri)
    except UnreachableError as error:
        if not config.tracking.offline_ok:
            raise
        return error.message
    return ""


def _write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    write_durably(folder / RUN, (json.dumps(facts, indent=2) + "\n").encode())


def _facts_in(store: Store) -> dict[str, str]:
    """What `run.json` says of a run that is in MLflow."""
    return {
        "run_name": store.run_name,
        "experiment": store.experiment,
        "experiment_id": store.experiment_id,
        "tracked_id": store.run_id,
    }


def _facts_of(about: RunAbout, provenance: Provenance) -> dict[str, Any]:
    """What a run is, its plugins, and the order in which each hook calls them."""
    return {
        ABOUT: attrs.asdict(about),
        "plugins": [attrs.asdict(plugin) for plugin in provenance.plugins],
        "hooks": {name: list(order) for name, order in provenance.hooks.items()},
    }


def _give_up(store: Store) -> None:
    """A run that was not opened is not running."""
    with contextlib.suppress(StoreError):
        store.terminate("FAILED" if store.status == RUNNING else store.status)


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    """Raise what the disk refuses as an error of the runs folder."""
    try:
        yield
    except OSError as error:
        raise RequestError(
            f"the runs folder {root} is not writable: {error.strerror or error}.",
            "try: free disk space, or RLPLUG_HOME=/another/folder rlplug run",
        ) from error
