"""MLflow's model registry: names and aliases for models, and the checkpoints that they have."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from rlplug.errors import RequestError
from rlplug.quantities import format_number
from rlplug.tracking.evaluations import where_tracked
from rlplug.tracking.location import is_missing, runs_folder, tracking_uri, without_secrets
from rlplug.tracking.models import (
    CHECKPOINT,
    CHECKPOINT_TAG,
    SCORE,
    VERSIONS_TAG,
    LoggedModels,
    versions_of,
)
from rlplug.tracking.status import RunLock
from rlplug.tracking.store import CHECKPOINTS, Store, artifact_repository, asking, explained

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

_FORMS = "models are named models:/NAME@ALIAS, models:/NAME/VERSION or models:/m-ID"
_OTHERS = "try: mlflow.pyfunc.load_model, or a model of rlplug promote"
_ID = r"m-[0-9a-f]{32}"


@attrs.frozen(kw_only=True)
class Promoted:
    """A model in the registry."""

    name: str
    version: str
    alias: str
    model_id: str
    run_id: str
    """The run of its checkpoint."""
    step: int
    before: str = ""
    """The version that the alias was of; empty if there was none."""
    was_registered: bool = False
    """Whether the model had this version before."""

    @property
    def uri(self) -> str:
        return f"models:/{self.name}@{self.alias}"


def is_model_uri(text: str) -> bool:
    """Whether it is of a model in MLflow, not of a run."""
    return text.startswith("models:")


def promote_model(uri: str, name: str, alias: str) -> Promoted:
    """Register a model in MLflow under a name, and move an alias to it."""
    with _located(uri, runs_folder()) as (client, model):
        return _promote(client, model, name, alias)


def promote(checkpoint: Path, name: str, alias: str) -> Promoted:
    """Register the model of a checkpoint under a name, and move an alias to it.

    The registry is that of the store that the run is in. A model that the store does not have yet
    is logged first.
    """
    folder = checkpoint.absolute().parent.parent
    where = where_tracked(folder)
    if where is None:
        raise RequestError(
            f"the run of {checkpoint} is not in MLflow.",
            "try: a run that was started with tracking.enabled, after rlplug runs sync",
        )
    store = Store.open_run(*where)
    with explained(where[0], f"{checkpoint.name} of run {store.run_id} cannot be promoted"):
        models = LoggedModels(store, folder)
        # Nobody else logs it.
        lock = RunLock.try_take(folder) if (folder / "run.json").is_file() else None
        with lock or contextlib.nullcontext():
            model_id = models.ensure(checkpoint.name) if lock else models.find(checkpoint.name)
        if not model_id:
            raise RequestError(
                f"{checkpoint.name} of {folder.name} is not a model in MLflow.",
                "try: again when its run has uploaded it",
            )
        return _promote(store.client, store.client.get_logged_model(model_id), name, alias)


def fetch_model(text: str, root: Path) -> Path:
    """Download the checkpoint of a model into the runs folder; one that is there is not again."""
    with _located(text, root) as (client, model):
        # It becomes the name of a folder, and may come from anybody.
        name = model.tags.get(CHECKPOINT_TAG, "")
        name = name if re.fullmatch(r"step-\d+", name) else "step-0"
        folder = root / "fetched" / "models" / model.model_id / CHECKPOINTS
        if (folder / name).is_dir():
            return folder / name
        coming = root / "fetched" / "models" / f".coming-{model.model_id}"
        shutil.rmtree(coming, ignore_errors=True)
        coming.mkdir(parents=True)
        try:
            repository = artifact_repository(client, model.artifact_location)
            files = {file.path for file in repository.list_artifacts(CHECKPOINT)}
            if f"{CHECKPOINT}/manifest.json" not in files:
                raise RequestError(f"the model {text!r} has no checkpoint of rlplug.", _OTHERS)
            downloaded = repository.download_artifacts(CHECKPOINT, str(coming))  # type: ignore[no-untyped-call] # in mlflow
            folder.mkdir(parents=True, exist_ok=True)
            return Path(downloaded).rename(folder / name)
        finally:
            shutil.rmtree(coming, ignore_errors=True)


def _promote(client: MlflowClient, model: LoggedModel, name: str, alias: str) -> Promoted:
    from mlflow.exceptions import MlflowException

    hint = "try: letters, digits, - and _"
    # Before anything is registered, what MLflow would refuse half-way.
    if not name or re.search(r"[/:@']", name):
        raise RequestError(f"{name!r} cannot be the name of a registered model.", hint)
    if not re.fullmatch(r"[\w-]+", alias) or re.fullmatch(r"latest|v\d+", alias.lower()):
        reserved = f"{hint}, but not latest or v1, which are MLflow's own"
        raise RequestError(f"{alias!r} cannot be an alias of a registered model.", reserved)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    before = str(client.get_registered_model(name).aliases.get(alias, ""))
    step = int(model.params.get("step", "") or 0)
    versions = versions_of(client, model)
    known = next((version for version in versions if version.name == name), None)
    version = known
    if version is None:
        scores = [metric.value for metric in model.metrics or () if metric.key == SCORE]
        at = "".join(f"{format_number(score)} at " for score in scores)
        version = client.create_model_version(
            name,
            # `models:/m-…` would be looked up in the store of MLflow's own settings.
            model.artifact_location,
            model.source_run_id,
            tags={"rlplug.step": str(step)},
            description=f"{at}step {step:,} of run {model.source_run_id}",
            model_id=model.model_id,
        )
        tag = [{"name": one.name, "version": one.version} for one in (*versions, version)]
        client.set_logged_model_tags(model.model_id, {VERSIONS_TAG: json.dumps(tag)})
    if before != str(version.version):
        client.set_registered_model_alias(name, alias, str(version.version))
    return Promoted(
        name=name,
        version=str(version.version),
        alias=alias,
        model_id=model.model_id,
        run_id=model.source_run_id or "",
        step=step,
        before=before,
        was_registered=known is not None,
    )


@contextlib.contextmanager
def _located(text: str, root: Path) -> Iterator[tuple[MlflowClient, LoggedModel]]:
    """A client of the store in which models are looked for, and the model of a URI, if complete."""
    uri = tracking_uri("", root)
    failed = f"there is no model {text!r} in MLflow at {without_secrets(uri)}"
    hint = "try: rlplug show RUN, or MLFLOW_TRACKING_URI of the store that has it"
    if is_missing(uri):
        raise RequestError(f"{failed}.", _FORMS, hint)
    rest = text.removeprefix("models:").lstrip("/")
    name, at, after = rest.rpartition("@" if "@" in rest else "/")
    if not re.fullmatch(_ID, rest) and not (name and (at == "@" or after.isdecimal())):
        raise RequestError(f"{text!r} is not the URI of a model.", _FORMS)
    with asking(uri, failed, hint) as client:
        if name:
            find = client.get_model_version_by_alias if at == "@" else client.get_model_version
            version = find(name, after)
            known = re.search(rf"\b{_ID}\b", f"{version.model_id} {version.source}")
            if known is None:
                raise RequestError(f"the model {text!r} has no checkpoint of rlplug.", _OTHERS)
            rest = known[0]
        model = client.get_logged_model(rest)
        if str(model.status) != "READY":
            raise RequestError(
                f"the model {text!r} is incomplete: {model.status}.",
                "try: rlplug runs sync, in the runs folder of its run",
            )
    with explained(uri, f"the model {text!r} cannot be read from {without_secrets(uri)}"):
        yield client, model
