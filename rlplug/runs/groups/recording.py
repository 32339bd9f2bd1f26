"""Record what a group comes to: files in its folder, and a parent run in MLflow."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence

import attrs

from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.review.plots import save
from rlplug.runs.groups.group import CONFIG, FACTS, Group
from rlplug.runs.groups.result import GroupResult
from rlplug.runs.groups.seeds import seeds_text
from rlplug.runs.recorded import RecordedRun
from rlplug.tracking.location import RunFolder
from rlplug.tracking.record import LONGEST_TAG, Record, basic_tags, place_tags
from rlplug.tracking.status import milliseconds
from rlplug.tracking.store import Store, StoreError, translated

__all__ = ["record"]

SUMMARY = "summary"
"""What `rlplug.kind` says of the parent run in MLflow; of a run it says `run`."""
_FILES = ("summary.json", "summary.md", "best.toml", "band.png", CONFIG, FACTS)
_KEPT = "summary_run_id"
_LOG = logging.getLogger("rlplug")


def record(result: GroupResult, group: Group) -> GroupResult:
    """Write the files, and record all in MLflow; the result, with its id there."""
    _write_files(result, group)
    runs = [run for run in result.runs if run.experiment_id and run.folder]
    try:
        return _in_mlflow(result, group, runs) if runs else result
    except (RequestError, StoreError) as error:
        message = str(error).splitlines()[0]
        _LOG.warning("rlplug: the summary of %s is not in MLflow: %s", group.name, message)
        return result


def _write_files(result: GroupResult, group: Group) -> None:
    best = None if result.best is None else result.best.run
    texts = {
        "summary.json": json.dumps(result.as_json(), indent=2) + "\n",
        "summary.md": result.markdown(),
    }
    try:
        group.folder.mkdir(parents=True, exist_ok=True)
        if best is not None and best.folder is not None:
            texts["best.toml"] = (best.folder / CONFIG).read_text()
        for name, text in texts.items():
            write_durably(group.folder / name, text.encode())
        if result.counted:
            save(result.plot(), group.folder / "band.png")
    except Exception as error:
        # A full disk or a broken font does not stop the rest.
        _LOG.warning("rlplug: a file in %s cannot be written: %s.", group.folder, error)


def _in_mlflow(result: GroupResult, group: Group, runs: Sequence[RecordedRun]) -> GroupResult:
    about, store = runs[0].about, _open(result, group, runs[0])
    now, last = int(time.time() * 1000), max(run.step for run in runs)
    # Always the same, with which a point that is recorded again is still one point.
    began = milliseconds(runs[0].started) or now
    rows = [(name, value, now, last) for name, value in result.metrics().items()]
    for name, values in result.series().items():
        rows += [(name, value, began, step) for step, value in values.items()]
    store.log_rows(rows)
    # With space between the columns of tables, which MLflow draws without.
    lines = [
        line if "---" in line else line.replace(" |", "&emsp;|")
        for line in result.markdown().splitlines()
    ]
    chosen = {} if result.best is None else result.best.options
    options = " ".join(f"{name}={value}" for name, value in chosen.items())
    tags = {
        "mlflow.note.content": "\n".join(lines),
        "rlplug.group": group.name,
        "rlplug.algo": about.algorithm,
        "rlplug.env": about.env,
        "rlplug.seeds": seeds_text({run.about.seed for run in runs}),
        "rlplug.options": options or about.shown_options,
    }
    store.set_tags({name: value[:LONGEST_TAG] for name, value in tags.items() if value})
    with translated():
        for run in runs:
            store.client.set_tag(run.id_in_mlflow, "mlflow.parentRunId", store.run_id)
    for name in _FILES:
        if (group.folder / name).exists():
            store.log_file(group.folder / name, "")
    store.terminate("FINISHED")
    group.keep(**{_KEPT: store.run_id})
    return attrs.evolve(result, run_id=store.run_id)


def _open(result: GroupResult, group: Group, run: RecordedRun) -> Store:
    """The parent run of the group, if it is still there; else a new one."""
    assert run.folder is not None
    folder = RunFolder.read(run.folder)
    assert folder is not None
    uri, kept = folder.tracking_uri(""), group.facts.get(_KEPT, "")
    if kept:
        try:
            return Store.open_run(uri, kept)
        except RequestError:
            # It was deleted.
            pass
    about, asked = run.about, group.facts.get("options", {})
    params = {"algorithm": about.algorithm, "env": about.env, "steps": str(about.steps)}
    params = {f"run.{name}": value for name, value in params.items()}
    if result.kind == "seed":
        params |= about.options
    params |= {name: text for name, text in asked.items() if name.startswith("tune.")}
    started = Record(
        experiment=folder.experiment,
        experiment_id=run.experiment_id,
        run_name=f"{group.name}-summary",
        number_names=False,
        params=params,
        tags={**basic_tags(SUMMARY), **place_tags(group.root)},
        about=about,
    )
    return Store.create_run(uri, started, group.root)
