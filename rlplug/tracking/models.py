"""Models of a run in MLflow: each evaluated checkpoint is a LoggedModel with its scores."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplug.durable import write_durably
from rlplug.quantities import format_number
from rlplug.review.record import HEADLINES, RunAbout
from rlplug.tracking.journal import JOURNAL, Report, Row
from rlplug.tracking.location import RunFolder, read_object
from rlplug.tracking.status import MODELS, known_models
from rlplug.tracking.store import CHECKPOINTS, Store, StoreError, delete_files, translated

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

CHECKPOINT = "checkpoint"
"""The folder of a model with its checkpoint, which lacks what only training needs."""
LOADER = "rlplug.runs.pyfunc"
"""The module whose `_load_pyfunc` MLflow calls."""
CHECKPOINT_TAG, DIGEST_TAG = "rlplug.checkpoint", "rlplug.digest"
VERSIONS_TAG = "mlflow.modelVersions"
"""Servers set it when a model is registered; by it the UI links a model to the registry."""

SCORE = HEADLINES[0]
_NO_SCORES = ("eval/best_return_mean", "eval/best_step", "eval/episodes", "eval/episodes_cut")


def models_of(client: MlflowClient, experiment_id: str, run_id: str) -> Iterator[LoggedModel]:
    """All models of a run; MLflow gives a hundred at a time."""
    token: str | None = ""
    while token is not None:
        page = client.search_logged_models(
            [experiment_id], f"source_run_id = '{run_id}'", page_token=token or None
        )
        yield from page
        token = page.token or None


def versions_of(client: MlflowClient, model: LoggedModel) -> list[ModelVersion]:
    """The versions under which a model is registered; a tag tells whether there may be some."""
    if VERSIONS_TAG not in model.tags:
        return []
    sources = (model.artifact_location, f"models:/{model.model_id}")
    return [
        version
        for source in sources
        for version in client.search_model_versions(f"source_path = '{source}'")
    ]


def delete_model(client: MlflowClient, model: LoggedModel) -> None:
    """Delete a model, and its files, which MLflow would keep."""
    delete_files(client, model.artifact_location)
    client.delete_logged_model(model.model_id)


class LoggedModels:
    """The models of one run, for one thread; one is READY when it is complete."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder, self._client = store, folder, store.client
        self._known: dict[str, LoggedModel] | None = None
        """By the names of their checkpoints; None: MLflow has to be asked."""
        self.logged = 0
        """How many this process has logged."""

    def bring(self) -> None:
        """Log what is missing, delete models of deleted checkpoints, and write `models.json`."""
        files = self._folder.glob(f"{CHECKPOINTS}/step-*/manifest.json")
        there = sorted(file.parent.name for file in files)
        if not there or not (self._folder / "signature.json").exists():
            return
        for name in there:
            manifest = self._manifest(name)
            if manifest.get("evaluation") and manifest.get("finite") is not False:
                self.ensure(name)
        try:
            # The run goes on from an earlier step, or keeps only the newest and the best.
            for name in {*self._models()} - {*there}:
                self._delete(name)
        except StoreError:
            self._known = None
            raise
        self._keep()

    def find(self, checkpoint: str) -> str:
        """The id of the model of a checkpoint; empty if it is not in MLflow, or not complete."""
        model = self._models().get(checkpoint)
        digest = self._manifest(checkpoint).get("state_digest", "")
        is_complete = model is not None and str(model.status) == "READY"
        same = model is not None and model.tags.get(DIGEST_TAG, "") == digest
        return str(model.model_id) if model and is_complete and same else ""

    def ensure(self, checkpoint: str) -> str:
        """The id of the model of a checkpoint, logged if it is missing; empty if it cannot be."""
        manifest = self._manifest(checkpoint)
        signature = read_object(self._folder / "signature.json")
        if not manifest or not signature:
            return ""
        try:
            known = self.find(checkpoint)
            if not known:
                # Of an earlier course of the run, or incomplete.
                self._delete(checkpoint)
                with translated():
                    known = self._log(checkpoint, manifest, signature)
                self._keep()
        except StoreError:
            # It may have done what it did not answer.
            self._known = None
            if self._manifest(checkpoint):
                raise
            # Deleted meanwhile.
            return ""
        return known

    def _models(self) -> dict[str, LoggedModel]:
        if self._known is None:
            with translated():
                models = [*models_of(self._client, self._store.experiment_id, self._store.run_id)]
            # Of two of one checkpoint, the newest, which comes first.
            named = {model.tags.get(CHECKPOINT_TAG, ""): model for model in reversed(models)}
            self._known = {name: model for name, model in named.items() if name}
        return self._known

    def _delete(self, checkpoint: str) -> None:
        """Delete the model of a checkpoint and its files, unless it is registered."""
        known = self._models().pop(checkpoint, None)
        if known is None:
            return
        try:
            with translated():
                model = self._client.get_logged_model(known.model_id)
                if not versions_of(self._client, model):
                    delete_model(self._client, model)
        except StoreError as error:
            # Somebody may have deleted it.
            if not error.refused:
                raise

    def _keep(self) -> None:
        ids = {name: model.model_id for name, model in sorted(self._models().items())}
        if ids != known_models(self._folder):
            # Without it, MLflow would be asked.
            with contextlib.suppress(OSError):
                write_durably(self._folder / MODELS, (json.dumps(ids, indent=1) + "\n").encode())

    def _log(
        self, checkpoint: str, manifest: Mapping[str, Any], signature: Mapping[str, Any]
    ) -> str:
        from mlflow.entities import LoggedModelOutput

        run, step = RunFolder.read(self._folder), step_of(checkpoint)
        about = RunAbout() if run is None else run.about
        facts = {"algorithm": about.algorithm, "env": about.env, "seed": about.seed, "step": step}
        rows = self._scores(checkpoint, manifest)
        score = "".join(f"{format_number(row[1])} at " for row in rows if row[0] == SCORE)
        tags = {
            "rlplug.kind": "checkpoint",
            CHECKPOINT_TAG: checkpoint,
            DIGEST_TAG: manifest.get("state_digest", ""),
            "mlflow.user": self._store.tags.get("mlflow.user", ""),
            "mlflow.note.content": _note(f"{self._store.run_id[:8]}@{step}", about, step),
            "mlflow.source.type": "LOCAL",
            # The table of models shows it as `Logged from`.
            "mlflow.source.name": f"{score}step {step:,}",
        }
        with translated():
            model = self._client.create_logged_model(
                self._store.experiment_id,
                # MLflow refuses these characters; its table shows little more than 20.
                name=re.sub(r"[/:.%\"']", "-", f"{about.algorithm}-s{about.seed}-step-{step:09d}"),
                source_run_id=self._store.run_id,
                params={key: str(value)[:500] for key, value in {**facts, **about.options}.items()},
                tags=tags,
                model_type="rlplug-checkpoint",
            )
        self._upload(checkpoint, model, manifest, signature)
        if rows:
            self._store.log_rows(rows, model.model_id)
        with translated():
            output = LoggedModelOutput(model.model_id, step)
            self._client.log_outputs(self._store.run_id, [output])
            model = self._client.finalize_logged_model(model.model_id, "READY")
        self._models()[checkpoint] = model
        self.logged += 1
        return str(model.model_id)

    def _upload(
        self,
        checkpoint: str,
        model: LoggedModel,
        manifest: Mapping[str, Any],
        signature: Mapping[str, Any],
    ) -> None:
        """The checkpoint, of which the folder of the run has the same bytes, then the rest."""
        location, made = model.artifact_location, self._folder / ".unfinished-model"
        needed = [name for name in manifest["files"] if not name.startswith("training/")]
        for name in (*needed, "manifest.json"):
            file = self._folder / CHECKPOINTS / checkpoint / name
            self._store.log_file(file, (Path(CHECKPOINT) / name).parent.as_posix(), location)
        shutil.rmtree(made, ignore_errors=True)
        try:
            with translated():
                made.mkdir()
                _write_files(made, model, signature)
            for file in made.iterdir():
                self._store.log_file(file, "", location)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _scores(self, checkpoint: str, manifest: Mapping[str, Any]) -> list[Row]:
        """The evaluation at a step, as the journal has it: its time makes it the same metrics.

        Where a resumed run took another course, past steps known before, the checkpoint alone has
        it.
        """
        step = step_of(checkpoint)
        written = (self._folder / CHECKPOINTS / checkpoint / "manifest.json").stat().st_mtime
        report = Report.of(step, written, manifest["evaluation"] or {})
        with contextlib.suppress(OSError), (self._folder / JOURNAL).open("rb") as lines:
            for line in lines:
                same = Report.parse(line) if line.startswith(b'{"step":%d,' % step) else None
                report = same if same is not None and SCORE in same.metrics else report
        return [
            row
            for row in report.rows()
            if row[0].startswith("eval/") and row[0] not in _NO_SCORES and not math.isnan(row[1])
        ]

    def _manifest(self, checkpoint: str) -> dict[str, Any]:
        """Empty if there is no such checkpoint."""
        return read_object(self._folder / CHECKPOINTS / checkpoint / "manifest.json")


def _write_files(folder: Path, entity: LoggedModel, signature: Mapping[str, Any]) -> None:
    """What makes a checkpoint a pyfunc: how it is loaded, what it takes, and what it needs."""
    from mlflow.models import Model, ModelSignature

    python = platform.python_version()
    model = Model(run_id=entity.source_run_id, model_id=entity.model_id, model_uuid=entity.model_id)
    model.add_flavor(
        "python_function",
        loader_module=LOADER,
        data=CHECKPOINT,
        python_version=python,
        env={"virtualenv": "python_env.yaml"},
    )
    if "inputs" in signature:
        parts = {name: json.dumps(signature[name]) for name in ("inputs", "outputs", "params")}
        model.signature = ModelSignature.from_dict(parts)
    # YAML has JSON in it.
    virtual = {"python": python, "dependencies": ["-r requirements.txt"]}
    (folder / "python_env.yaml").write_text(json.dumps(virtual, indent=1) + "\n")
    (folder / "requirements.txt").write_text("\n".join([*signature["requirements"], ""]))
    model.save(str(folder / "MLmodel"))


def _note(run: str, about: RunAbout, step: int) -> str:
    """The description on the page of a model."""
    return (
        f"{about.algorithm} on {about.env}, seed {about.seed}, after {step:,} steps.\n\n"
        f'- Load it: `rlplug.load("{run}")`\n'
        f"- Evaluate it: `rlplug eval {run}`\n"
        f"- Serve it: `rlplug serve {run}`\n"
        f"- Register it: `rlplug promote {run} NAME`\n"
    )


def step_of(checkpoint: str) -> int:
    """The environment step in the name of a checkpoint."""
    digits = checkpoint.removeprefix("step-")
    return int(digits) if digits.isdecimal() else 0
