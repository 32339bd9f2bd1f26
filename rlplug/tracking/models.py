"""Models of a run in MLflow: each evaluated checkpoint is a LoggedModel with its scores."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.durable import write_durably
from rlplug.quantities import format_number
from rlplug.review.record import RunAbout, rank
from rlplug.tracking.artifacts import CHECKPOINTS
from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError, translated
from rlplug.tracking.journal import Report, Row
from rlplug.tracking.known_models import (
    CHECKPOINT_TAG,
    MODELS,
    delete_model,
    is_ready,
    known_models,
    models_of,
    read_object,
    versions_of,
)
from rlplug.tracking.location import RunFolder
from rlplug.tracking.model_files import CHECKPOINT, checkpoint_files, write_model_files
from rlplug.tracking.store import Store

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

__all__ = ["LoggedModels"]

DIGEST_TAG = "rlplug.digest"
MARKS_TAG = "rlplug.marks"
SOURCE_TAG = "mlflow.source.name"
"""MLflow's table of models shows it as `Logged from`; other tags are on the page of a model."""

SCORE = "eval/return_mean"
_NO_SCORES = ("eval/best_return_mean", "eval/best_step", "eval/episodes", "eval/episodes_cut")
_LONGEST = 500
_TAIL_BYTES = 100_000


@attrs.define
class _Model:
    """A model in MLflow."""

    entity: LoggedModel
    step: int
    evaluation: Mapping[str, float]
    """The metrics of its evaluation; empty without one."""
    shown: str
    """What MLflow's table says of it."""

    @property
    def score(self) -> float | None:
        """The mean return of its evaluation."""
        return self.evaluation.get(SCORE)


class LoggedModels:
    """The models of one run; for the thread of its writer only.

    A model is READY when it is complete; one that a killed process left is completed.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._known: dict[str, _Model] | None = None
        """By the names of their checkpoints; None: MLflow has to be asked."""
        self._refused = False

    def log_all(self) -> None:
        """Log the models that are missing."""
        for manifest in sorted(self._folder.glob(f"{CHECKPOINTS}/step-*/manifest.json")):
            self.log(manifest.parent.name)
        self.mark()

    def log(self, checkpoint: str) -> None:
        """Log the model of a checkpoint that was evaluated, unless it is there."""
        manifest = self._manifest(checkpoint)
        if manifest and manifest.get("evaluation") and manifest.get("finite") is not False:
            self.ensure(checkpoint)

    def find(self, checkpoint: str) -> str:
        """The id of the model of a checkpoint; empty if it is not in MLflow, or not complete."""
        model = self._models().get(checkpoint)
        if model is None or not is_ready(model.entity):
            return ""
        same = model.entity.tags.get(DIGEST_TAG) == _digest(self._manifest(checkpoint))
        return str(model.entity.model_id) if same else ""

    def ensure(self, checkpoint: str) -> str:
        """The id of the model of a checkpoint, logged if it is missing; empty if it cannot be."""
        manifest = self._manifest(checkpoint)
        if not manifest or self._refused:
            return ""
        try:
            return self.find(checkpoint) or self._complete(checkpoint, manifest)
        except StoreUnreachableError:
            # It may have done what it did not answer.
            self._known = None
            if self._manifest(checkpoint):
                raise
            # Deleted meanwhile.
            self.delete(checkpoint)
            return ""
        except StoreRefusedError:
            # Told once.
            self._refused = True
            raise

    def delete(self, checkpoint: str) -> None:
        """Delete the model of a checkpoint and its files, unless it is registered."""
        model = None if self._refused else self._models().pop(checkpoint, None)
        if model is None:
            return
        client = self._store.client
        try:
            with _answered():
                entity = client.get_logged_model(model.entity.model_id)
                if not versions_of(client, entity):
                    delete_model(client, entity)
        except StoreRefusedError:
            # Somebody deleted it.
            return

    def delete_after(self, step: int) -> None:
        """Delete those of a course that the run does not take: it goes on from an earlier step."""
        if not self._refused:
            for name in [one for one, model in self._models().items() if model.step > step]:
                self.delete(name)

    def mark(self) -> None:
        """Tell in MLflow which model is the best and which the last one; write `models.json`."""
        if self._refused or (self._known is None and not (self._folder / MODELS).exists()):
            return
        models = self._models()
        scored = [name for name in models if models[name].score is not None]
        ranks = {name: rank(models[name].evaluation, models[name].step) for name in scored}
        best = max(scored, key=ranks.__getitem__, default="")
        last = max(models, default="")
        for name, model in models.items():
            marks = ", ".join(word for word, at in (("best", best), ("last", last)) if name == at)
            tags = _marking(name, marks, model.score)
            if tags[SOURCE_TAG] != model.shown:
                # Somebody may have deleted it.
                with contextlib.suppress(StoreRefusedError), translated():
                    self._store.client.set_logged_model_tags(model.entity.model_id, tags)
                model.shown = tags[SOURCE_TAG]
        ids = {name: model.entity.model_id for name, model in sorted(models.items())}
        if ids != known_models(self._folder):
            # Without it, MLflow would be asked.
            with contextlib.suppress(OSError):
                write_durably(self._folder / MODELS, (json.dumps(ids, indent=1) + "\n").encode())

    def _complete(self, checkpoint: str, manifest: Mapping[str, Any]) -> str:
        """Create the model, or complete what an earlier process left of it."""
        signature = read_object(self._folder / "signature.json")
        if not signature:
            return ""
        model = self._models().get(checkpoint)
        if model is not None and model.entity.tags.get(DIGEST_TAG) != _digest(manifest):
            # The run went on from an earlier checkpoint, and came to this step again.
            self.delete(checkpoint)
            model = None
        found = model is not None
        if model is None:
            model = self._create(checkpoint, manifest)
        self._upload(checkpoint, model.entity, manifest, signature)
        self._finish(checkpoint, model, found=found)
        return str(model.entity.model_id)

    def _models(self) -> dict[str, _Model]:
        if self._known is None:
            known: dict[str, _Model] = {}
            client, store = self._store.client, self._store
            with _answered():
                for entity in models_of(client, store.experiment_id, store.run_id):
                    name = entity.tags.get(CHECKPOINT_TAG, "")
                    if name and name not in known:
                        scores = {one.key: one.value for one in entity.metrics or ()}
                        shown = entity.tags.get(SOURCE_TAG, "")
                        known[name] = _Model(entity, _step(name), scores, shown)
            self._known = known
        return self._known

    def _create(self, checkpoint: str, manifest: Mapping[str, Any]) -> _Model:
        run = RunFolder.read(self._folder)
        about = RunAbout() if run is None else run.about
        step = _step(checkpoint)
        params = {
            "algorithm": about.algorithm,
            "env": about.env,
            "seed": str(about.seed),
            "step": str(step),
            **about.options,
        }
        tags = {
            "rlplug.kind": "checkpoint",
            CHECKPOINT_TAG: checkpoint,
            DIGEST_TAG: _digest(manifest),
            "mlflow.user": self._store.tags.get("mlflow.user", ""),
            "mlflow.note.content": _note(self._store.run_id, about, step),
            "mlflow.source.type": "LOCAL",
            **_marking(checkpoint, ""),
        }
        with translated():
            entity = self._store.client.create_logged_model(
                self._store.experiment_id,
                name=_name(about, step),
                source_run_id=self._store.run_id,
                params={name: value[:_LONGEST] for name, value in params.items()},
                tags=tags,
                model_type="rlplug-checkpoint",
            )
        model = self._models()[checkpoint] = _Model(entity, step, {}, "")
        return model

    def _upload(
        self,
        checkpoint: str,
        entity: LoggedModel,
        manifest: Mapping[str, Any],
        signature: Mapping[str, Any],
    ) -> None:
        """The checkpoint, of which the folder of the run has the same bytes, then the rest."""
        folder, location = self._folder / CHECKPOINTS / checkpoint, entity.artifact_location
        size = 0
        for name in checkpoint_files(manifest):
            into = (Path(CHECKPOINT) / name).parent.as_posix()
            self._store.log_file_at(location, folder / name, into)
            with contextlib.suppress(OSError):
                size += (folder / name).stat().st_size
        made = self._folder / ".unfinished-model"
        shutil.rmtree(made, ignore_errors=True)
        try:
            with translated():
                made.mkdir()
                write_model_files(made, entity, self._store.run_id, signature, size)
            for file in sorted(made.iterdir(), key=lambda one: (one.name == "MLmodel", one)):
                self._store.log_file_at(location, file, "")
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _finish(self, checkpoint: str, model: _Model, *, found: bool) -> None:
        """Log the scores and the model as an output of its run, and make it READY."""
        from mlflow.entities import LoggedModelOutput

        client, run_id, model_id = self._store.client, self._store.run_id, model.entity.model_id
        scores = {row[0]: row for row in self._scores(checkpoint, model.step)}
        if scores:
            self._store.log_rows(list(scores.values()), model_id, self._store.evaluated_on)
        with translated():
            if not (found and self._is_output(model_id)):
                client.log_outputs(run_id, [LoggedModelOutput(model_id, model.step)])
            model.entity = client.finalize_logged_model(model_id, "READY")
        if SCORE in scores:
            model.evaluation = {name: row[1] for name, row in scores.items()}

    def _is_output(self, model_id: str) -> bool:
        """Whether an earlier process has told; telling it twice would list it twice."""
        outputs = self._store.client.get_run(self._store.run_id).outputs
        return outputs is not None and any(
            one.model_id == model_id for one in outputs.model_outputs
        )

    def _scores(self, checkpoint: str, step: int) -> list[Row]:
        """The evaluation at a step, as the journal has it: its time makes it the same metrics.

        Where a resumed run took another course, past steps known before, the checkpoint alone has
        it.
        """
        found = _evaluation_at(self._folder / "metrics.jsonl", step)
        if found is None:
            path = self._folder / CHECKPOINTS / checkpoint / "manifest.json"
            with contextlib.suppress(OSError):
                evaluation = self._manifest(checkpoint).get("evaluation") or {}
                found = Report.of(step, path.stat().st_mtime, evaluation)
        return [
            row
            for row in (() if found is None else found.rows())
            if row[0].startswith("eval/") and row[0] not in _NO_SCORES and not math.isnan(row[1])
        ]

    def _manifest(self, checkpoint: str) -> dict[str, Any]:
        """Empty if there is no such checkpoint."""
        return read_object(self._folder / CHECKPOINTS / checkpoint / "manifest.json")


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """As `translated`; a server that knows no models is not asked again."""
    try:
        with translated():
            yield
    except StoreUnreachableError as error:
        if getattr(error.__cause__, "error_code", "") == "ENDPOINT_NOT_FOUND":
            raise StoreRefusedError("its server has no models, which came with MLflow 3") from error
        raise


def _name(about: RunAbout, step: int) -> str:
    """Short, for the table of models shows little more than 20 characters."""
    # MLflow refuses these characters.
    return re.sub(r"[/:.%\"']", "-", f"{about.algorithm}-s{about.seed}-step-{step:09d}")


def _note(run_id: str, about: RunAbout, step: int) -> str:
    """The description on the page of a model."""
    run = f"{run_id[:8]}@{step}"
    return (
        f"{about.algorithm} on {about.env}, seed {about.seed}, after {step:,} steps.\n\n"
        f'- Load it: `rlplug.load("{run}")`\n'
        f"- Evaluate it: `rlplug eval {run}`\n"
        f"- Serve it: `rlplug serve {run}`\n"
        f"- Register it: `rlplug promote {run} NAME`\n"
    )


def _marking(checkpoint: str, marks: str, score: float | None = None) -> dict[str, str]:
    """The marks, and the score at first: the table of models has its metrics far to the right."""
    step = f"step {_step(checkpoint):,}"
    shown = step if score is None else f"{format_number(score)} at {step}"
    return {MARKS_TAG: marks, SOURCE_TAG: f"{shown} ({marks})" if marks else shown}


def _evaluation_at(journal: Path, step: int) -> Report | None:
    """The report of an evaluation; it is looked for at the end of the journal first."""
    try:
        size = journal.stat().st_size
        with journal.open("rb") as file:
            for start in (max(size - _TAIL_BYTES, 0), 0):
                file.seek(start)
                for line in reversed(file.read().splitlines()):
                    if f'"{SCORE}"'.encode() in line:
                        report = Report.parse(line)
                        if report is not None and report.step == step:
                            return report
    except OSError:
        pass
    return None


def _digest(manifest: Mapping[str, Any]) -> str:
    """Of the state in a checkpoint."""
    return str(manifest.get("state_digest", ""))


def _step(checkpoint: str) -> int:
    digits = checkpoint.removeprefix("step-")
    return int(digits) if digits.isdecimal() else 0
