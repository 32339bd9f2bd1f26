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
from rlplug.tracking.artifacts import CHECKPOINTS, artifact_repository
from rlplug.tracking.client import asking
from rlplug.tracking.evaluations import where_tracked
from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError, translated
from rlplug.tracking.known_models import CHECKPOINT_TAG, VERSIONS_TAG, is_ready
from rlplug.tracking.location import is_missing, runs_folder, tracking_uri, without_secrets
from rlplug.tracking.lock import RunLock
from rlplug.tracking.model_files import CHECKPOINT
from rlplug.tracking.models import LoggedModels
from rlplug.tracking.store import Store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

__all__ = [
    "MODEL_URI",
    "Promoted",
    "fetch_model",
    "find_model",
    "is_model_uri",
    "promote",
    "promote_model",
]

MODEL_URI = "models:/"

_FORMS = "models:/NAME@ALIAS, models:/NAME/VERSION or models:/m-ID"


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
        return f"{MODEL_URI}{self.name}@{self.alias}"


def is_model_uri(text: str) -> bool:
    """Whether it is of a model in MLflow, not of a run."""
    return text.startswith("models:")


def promote_model(uri: str, name: str, alias: str) -> Promoted:
    """Register a model in MLflow under a name, and move an alias to it."""
    _check_names(name, alias)
    with _asking_for(uri, runs_folder(), f"the model {uri!r} cannot be registered") as client:
        model_id, _, _ = _located(client, uri)
        return _promote(client, model_id, name, alias)


def promote(checkpoint: Path, name: str, alias: str) -> Promoted:
    """Register the model of a checkpoint under a name, and move an alias to it.

    The registry is that of the store that the run is in. A model that the store does not have yet
    is logged first.
    """
    _check_names(name, alias)
    folder = checkpoint.absolute().parent.parent
    where = where_tracked(folder)
    if where is None:
        raise RequestError(
            f"the run of {checkpoint} is not in MLflow.",
            "try: a run that was started with tracking.enabled, after rlplug runs sync",
        )
    store = Store.open_run(*where)
    model_id = _model_of(store, folder, checkpoint.name)
    shown = without_secrets(where[0])
    with asking(where[0], f"{name!r} cannot be registered at {shown}") as client:
        return _promote(client, model_id, name, alias)


def _check_names(name: str, alias: str) -> None:
    """Refuse before anything is registered what MLflow would refuse half-way."""
    if not name or re.search(r"[/:@']", name):
        raise RequestError(
            f"{name!r} cannot be the name of a registered model.",
            "try: letters, digits, - and _",
        )
    if not re.fullmatch(r"[\w-]+", alias) or re.fullmatch(r"latest|v\d+", alias.lower()):
        raise RequestError(
            f"{alias!r} cannot be an alias of a registered model.",
            "try: letters, digits, - and _, but not latest or v1, which are MLflow's own",
        )


def find_model(checkpoint: Path) -> str:
    """The id of the model of a checkpoint that was downloaded; empty if it has none."""
    folder = checkpoint.absolute().parent.parent
    where = where_tracked(folder)
    return (
        "" if where is None else LoggedModels(Store.open_run(*where), folder).find(checkpoint.name)
    )


def _model_of(store: Store, folder: Path, checkpoint: str) -> str:
    """The id of the model of a checkpoint, which is logged if no process does that."""
    models = LoggedModels(store, folder)
    lock = RunLock.try_take(folder) if (folder / "run.json").is_file() else None
    try:
        if lock is None:
            found = models.find(checkpoint)
        else:
            with lock:
                found = models.ensure(checkpoint)
                models.mark()
    except (StoreRefusedError, StoreUnreachableError) as error:
        raise RequestError(
            f"the model of {checkpoint} of run {store.run_id} cannot be logged: {error}.",
            "try: again later",
        ) from error
    if found:
        return found
    raise RequestError(
        f"{checkpoint} of run {store.run_id} is not a model in MLflow.",
        "try: again when its run has uploaded it"
        if lock is None
        else "try: a run of this version of rlplug",
    )


def _promote(client: MlflowClient, model_id: str, name: str, alias: str) -> Promoted:
    from mlflow.exceptions import MlflowException

    model = client.get_logged_model(model_id)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    registered = client.get_registered_model(name)
    version = _version_of(client, name, model.artifact_location)
    was_registered = version is not None
    if version is None:
        version = client.create_model_version(
            name,
            # `models:/m-…` would be looked up in the store of MLflow's own settings.
            model.artifact_location,
            model.source_run_id,
            tags={"rlplug.step": model.params.get("step", "")},
            description=_description(model),
            model_id=model_id,
        )
    number = str(version.version)
    _tell_model(client, model_id, name, number)
    before = str(registered.aliases.get(alias, ""))
    if before != number:
        client.set_registered_model_alias(name, alias, number)
    return Promoted(
        name=name,
        version=number,
        alias=alias,
        model_id=model_id,
        run_id=model.source_run_id or "",
        step=_step_of(model),
        before=before,
        was_registered=was_registered,
    )


def _description(model: LoggedModel) -> str:
    """Of a version: its score, step and run."""
    scores = {one.key: one.value for one in model.metrics or ()}
    step = f"step {_step_of(model):,} of run {model.source_run_id}"
    score = scores.get("eval/return_mean")
    return step if score is None else f"{format_number(score)} at {step}"


def _step_of(model: LoggedModel) -> int:
    step = model.params.get("step", "")
    return int(step) if step.isdecimal() else 0


def _version_of(client: MlflowClient, name: str, location: str) -> ModelVersion | None:
    """The version of a registered model whose files are here already."""
    token: str | None = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", page_token=token)
        for version in page:
            if version.source == location:
                return version
        token = page.token
        if not token:
            return None


def _tell_model(client: MlflowClient, model_id: str, name: str, version: str) -> None:
    """Set the tag by which the UI links it to the registry; a server does so by itself."""
    one = {"name": name, "version": version}
    tag = client.get_logged_model(model_id).tags.get(VERSIONS_TAG, "[]")
    versions = json.loads(tag)
    known = [{**each, "version": str(each["version"])} for each in versions]
    if one not in known:
        client.set_logged_model_tags(model_id, {VERSIONS_TAG: json.dumps([*versions, one])})


def fetch_model(text: str, root: Path) -> Path:
    """Download the checkpoint of a model into the runs folder; one that is there is not again."""
    with _asking_for(text, root, f"the model {text!r} cannot be downloaded") as client:
        model_id, location, name = _located(client, text)
        folder = root / "fetched" / "models" / model_id / CHECKPOINTS
        if (folder / name).is_dir():
            return folder / name
        coming = root / "fetched" / "models" / f".coming-{model_id}"
        shutil.rmtree(coming, ignore_errors=True)
        coming.mkdir(parents=True)
        try:
            repository = artifact_repository(client, location)
            files = {one.path for one in repository.list_artifacts(CHECKPOINT)}
            if f"{CHECKPOINT}/manifest.json" not in files:
                raise RequestError(
                    f"the model {text!r} has no checkpoint of rlplug.",
                    "try: mlflow.pyfunc.load_model, or a model of rlplug promote",
                )
            downloaded = repository.download_artifacts(CHECKPOINT, str(coming))  # type: ignore[no-untyped-call] # in mlflow
            folder.mkdir(parents=True, exist_ok=True)
            Path(downloaded).rename(folder / name)
        finally:
            shutil.rmtree(coming, ignore_errors=True)
    return folder / name


@contextlib.contextmanager
def _asking_for(text: str, root: Path, failed: str) -> Iterator[MlflowClient]:
    """A client of the store in which models are looked for, if there is one."""
    uri = tracking_uri("", root)
    if is_missing(uri):
        raise _unknown(text, uri)
    with asking(uri, f"{failed} from {without_secrets(uri)}") as client:
        yield client


def _unknown(text: str, uri: str) -> RequestError:
    return RequestError(
        f"there is no model {text!r} in MLflow at {without_secrets(uri)}.",
        f"models are named {_FORMS}",
        "try: rlplug best RUN, or MLFLOW_TRACKING_URI of the store that has it",
    )


def _located(client: MlflowClient, text: str) -> tuple[str, str, str]:
    """The id of a model, where its files are, and the name of its checkpoint."""
    rest = text.removeprefix("models:").lstrip("/")
    try:
        with translated():
            if not re.fullmatch(r"m-[0-9a-f]{32}", rest):
                rest = _registered(client, text, rest)
            model = client.get_logged_model(rest)
    except StoreRefusedError as error:
        raise _unknown(text, client.tracking_uri) from error
    if not is_ready(model):
        raise RequestError(
            f"the model {text!r} is incomplete: {model.status}.",
            "try: rlplug runs sync, in the runs folder of its run",
        )
    # It becomes the name of a folder, and may come from anybody.
    name = model.tags.get(CHECKPOINT_TAG, "")
    return rest, model.artifact_location, name if re.fullmatch(r"step-\d+", name) else "step-0"


def _registered(client: MlflowClient, text: str, rest: str) -> str:
    """The id of the model that a name with an alias, or with a version, stands for."""
    by_alias, by_version = (
        re.fullmatch(r"([^/@]+)@([^/@]+)", rest),
        re.fullmatch(r"([^/@]+)/(\d+)", rest),
    )
    if by_alias:
        version = client.get_model_version_by_alias(by_alias[1], by_alias[2])
    elif by_version:
        version = client.get_model_version(by_version[1], by_version[2])
    else:
        raise RequestError(f"{text!r} is not the URI of a model.", f"models are named {_FORMS}")
    found = re.search(r"\bm-[0-9a-f]{32}\b", f"{version.model_id} {version.source}")
    if found:
        return found[0]
    raise RequestError(
        f"the model {text!r} has no checkpoint of rlplug: it was registered from {version.source}.",
        "try: mlflow.pyfunc.load_model, or a model of rlplug promote",
    )
