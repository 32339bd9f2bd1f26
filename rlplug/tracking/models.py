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
from rlplug.review.record import HEADLINES, RunAbout, rank
from rlplug.tracking.artifacts import CHECKPOINTS, delete_files
from rlplug.tracking.client import StoreRefusedError, StoreUnreachableError, translated
from rlplug.tracking.journal import JOURNAL, Report, Row
from rlplug.tracking.location import RunFolder, read_object
from rlplug.tracking.status import MODELS, known_models
from rlplug.tracking.store import Store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

CHECKPOINT = "checkpoint"
"""The folder of a model with its checkpoint, which lacks what only training needs."""
LOADER = "rlplug.runs.pyfunc"
"""The module whose `_load_pyfunc` MLflow calls."""
CHECKPOINT_TAG, DIGEST_TAG, MARKS_TAG = "rlplug.checkpoint", "rlplug.digest", "rlplug.marks"
SOURCE_TAG = "mlflow.source.name"
"""MLflow's table of models shows it as `Logged from`; other tags are on the page of a model."""
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
    """The models of one run; for the thread of its writer only.

    A model is READY when it is complete; one that a killed process left is completed.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder, self._client = store, folder, store.client
        self._known: dict[str, LoggedModel] | None = None
        """By the names of their checkpoints; None: MLflow has to be asked."""

    def log(self, checkpoint: str) -> None:
        """Log the model of a checkpoint that was evaluated, unless it is there."""
        manifest = self._manifest(checkpoint)
        if manifest.get("evaluation") and manifest.get("finite") is not False:
            self.ensure(checkpoint)

    def find(self, checkpoint: str) -> str:
        """The id of the model of a checkpoint; empty if it is not in MLflow, or not complete."""
        model = self._models().get(checkpoint)
        digest = self._manifest(checkpoint).get("state_digest", "")
        is_complete = model is not None and str(model.status) == "READY"
        return model.model_id if model and is_complete and _digest(model) == digest else ""

    def ensure(self, checkpoint: str) -> str:
        """The id of the model of a checkpoint, logged if it is missing; empty if it cannot be."""
        manifest = self._manifest(checkpoint)
        signature = read_object(self._folder / "signature.json")
        if not manifest or not signature:
            return ""
        try:
            return self.find(checkpoint) or self._complete(checkpoint, manifest, signature)
        except StoreUnreachableError:
            # It may have done what it did not answer.
            self._known = None
            if self._manifest(checkpoint):
                raise
            # Deleted meanwhile.
            self.delete(checkpoint)
            return ""

    def delete(self, checkpoint: str) -> None:
        """Delete the model of a checkpoint and its files, unless it is registered."""
        # Somebody may have deleted or registered it, or the server has no models.
        with contextlib.suppress(StoreRefusedError), translated():
            known = self._models().pop(checkpoint, None)
            model = known and self._client.get_logged_model(known.model_id)
            if model is not None and not versions_of(self._client, model):
                delete_model(self._client, model)

    def delete_after(self, step: int) -> None:
        """Delete those of a course that the run does not take: it goes on from an earlier step."""
        for name in [name for name in self._models() if step_of(name) > step]:
            self.delete(name)

    def mark(self) -> None:
        """Tell in MLflow which model is the best and which the last one; write `models.json`."""
        if self._known is None and not (self._folder / MODELS).exists():
            return
        models = self._models()
        scores = {name: scores_of(model) for name, model in models.items()}
        ranks = {name: rank(of, step_of(name)) for name, of in scores.items() if SCORE in of}
        places = {
            "best": max(ranks, key=ranks.__getitem__, default=""),
            "last": max(models, default=""),
        }
        for name, model in models.items():
            marks = ", ".join(mark for mark, marked in places.items() if marked == name)
            # The score first: the table of models has its metrics far to the right.
            shown = f"step {step_of(name):,}{f' ({marks})' if marks else ''}"
            if SCORE in scores[name]:
                shown = f"{format_number(scores[name][SCORE])} at {shown}"
            tags = {MARKS_TAG: marks, SOURCE_TAG: shown}
            if not tags.items() <= model.tags.items():
                # Somebody may have deleted it.
                with contextlib.suppress(StoreRefusedError), translated():
                    self._client.set_logged_model_tags(model.model_id, tags)
                model.tags.update(tags)
        ids = {name: model.model_id for name, model in sorted(models.items())}
        if ids != known_models(self._folder):
            # Without it, MLflow would be asked.
            with contextlib.suppress(OSError):
                write_durably(self._folder / MODELS, (json.dumps(ids, indent=1) + "\n").encode())

    def _complete(
        self, checkpoint: str, manifest: Mapping[str, Any], signature: Mapping[str, Any]
    ) -> str:
        """Create the model, or complete what an earlier process left of it; then it is READY."""
        from mlflow.entities import LoggedModelOutput

        model = self._models().get(checkpoint)
        if model is not None and _digest(model) != manifest.get("state_digest", ""):
            # The run went on from an earlier checkpoint, and came to this step again.
            self.delete(checkpoint)
            model = None
        told: set[str] = set()
        if model is None:
            model = self._create(checkpoint, manifest)
        else:
            with translated():
                outputs = self._client.get_run(self._store.run_id).outputs
            told = {output.model_id for output in outputs.model_outputs} if outputs else told
        self._upload(checkpoint, model, manifest, signature)
        scores = self._scores(checkpoint, manifest)
        if scores:
            self._store.log_rows(scores, model.model_id, self._store.evaluated_on)
        with translated():
            # Telling it twice would list it twice.
            if model.model_id not in told:
                output = LoggedModelOutput(model.model_id, step_of(checkpoint))
                self._client.log_outputs(self._store.run_id, [output])
            self._models()[checkpoint] = self._client.finalize_logged_model(model.model_id, "READY")
        return str(model.model_id)

    def _models(self) -> dict[str, LoggedModel]:
        if self._known is None:
            with translated():
                models = [*models_of(self._client, self._store.experiment_id, self._store.run_id)]
            # Of two of one checkpoint, the newest, which comes first.
            named = {model.tags.get(CHECKPOINT_TAG, ""): model for model in reversed(models)}
            self._known = {name: model for name, model in named.items() if name}
        return self._known

    def _create(self, checkpoint: str, manifest: Mapping[str, Any]) -> LoggedModel:
        run, step = RunFolder.read(self._folder), step_of(checkpoint)
        about = RunAbout() if run is None else run.about
        facts = {"algorithm": about.algorithm, "env": about.env, "seed": about.seed, "step": step}
        params = {name: str(value)[:500] for name, value in {**facts, **about.options}.items()}
        tags = {
            "rlplug.kind": "checkpoint",
            CHECKPOINT_TAG: checkpoint,
            DIGEST_TAG: manifest.get("state_digest", ""),
            "mlflow.user": self._store.tags.get("mlflow.user", ""),
            "mlflow.note.content": _note(f"{self._store.run_id[:8]}@{step}", about, step),
            "mlflow.source.type": "LOCAL",
            SOURCE_TAG: f"step {step:,}",
        }
        # MLflow refuses these characters; its table shows little more than 20.
        name = re.sub(r"[/:.%\"']", "-", f"{about.algorithm}-s{about.seed}-step-{step:09d}")
        with translated():
            model = self._models()[checkpoint] = self._client.create_logged_model(
                self._store.experiment_id,
                name=name,
                source_run_id=self._store.run_id,
                params=params,
                tags=tags,
                model_type="rlplug-checkpoint",
            )
        return model

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
            self._store.log_file_at(location, file, (Path(CHECKPOINT) / name).parent.as_posix())
        shutil.rmtree(made, ignore_errors=True)
        try:
            with translated():
                made.mkdir()
                _write_files(made, model, signature)
            for file in sorted(made.iterdir(), key=lambda file: (file.name == "MLmodel", file)):
                self._store.log_file_at(location, file, "")
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _scores(self, checkpoint: str, manifest: Mapping[str, Any]) -> list[Row]:
        """The evaluation at a step, as the journal has it: its time makes it the same metrics.

        Where a resumed run took another course, past steps known before, the checkpoint alone has
        it.
        """
        step, report = step_of(checkpoint), None
        with contextlib.suppress(OSError), (self._folder / JOURNAL).open("rb") as lines:
            for line in lines:
                found = Report.parse(line) if line.startswith(b'{"step":%d,' % step) else None
                report = found if found is not None and SCORE in found.metrics else report
        if report is None:
            file = self._folder / CHECKPOINTS / checkpoint / "manifest.json"
            with contextlib.suppress(OSError):
                report = Report.of(step, file.stat().st_mtime, manifest.get("evaluation") or {})
        return [
            row
            for row in (() if report is None else report.rows())
            if row[0].startswith("eval/") and row[0] not in _NO_SCORES and not math.isnan(row[1])
        ]

    def _manifest(self, checkpoint: str) -> dict[str, Any]:
        """Empty if there is no such checkpoint."""
        return read_object(self._folder / CHECKPOINTS / checkpoint / "manifest.json")


def _write_files(folder: Path, entity: LoggedModel, signature: Mapping[str, Any]) -> None:
    """What makes a checkpoint a pyfunc: how it is loaded, what it takes, and what it needs."""
    from mlflow.models import Model, ModelSignature

    needed, python = signature["requirements"], platform.python_version()
    model = Model(run_id=entity.source_run_id, model_id=entity.model_id, model_uuid=entity.model_id)
    model.add_flavor(
        "python_function",
        loader_module=LOADER,
        data=CHECKPOINT,
        python_version=python,
        env={"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
    )
    if signature.get("example") is not None:
        parts = {name: json.dumps(signature[name]) for name in ("inputs", "outputs", "params")}
        model.signature = ModelSignature.from_dict(parts)
        example, served = "input_example.json", "serving_input_example.json"
        model.saved_input_example_info = {
            "artifact_path": example,
            "serving_input_path": served,
            "params": "true",
            "type": "ndarray",
        }
        for name in (example, served):
            (folder / name).write_text(json.dumps(signature["example"]) + "\n")
    dependencies = [f"python={python}", "pip", {"pip": needed}]
    conda = {"name": "rlplug", "channels": ["conda-forge"], "dependencies": dependencies}
    virtual = {"python": python, "dependencies": ["-r requirements.txt"]}
    # YAML has JSON in it.
    (folder / "conda.yaml").write_text(json.dumps(conda, indent=1) + "\n")
    (folder / "python_env.yaml").write_text(json.dumps(virtual, indent=1) + "\n")
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in needed))
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


def scores_of(model: LoggedModel) -> dict[str, float]:
    """The metrics of a model."""
    return {metric.key: metric.value for metric in model.metrics or ()}


def step_of(checkpoint: str) -> int:
    """The environment step in the name of a checkpoint."""
    digits = checkpoint.removeprefix("step-")
    return int(digits) if digits.isdecimal() else 0


def _digest(model: LoggedModel) -> str:
    """Of the state in its checkpoint."""
    return str(model.tags.get(DIGEST_TAG, ""))
