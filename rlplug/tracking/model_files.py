"""The files that make a checkpoint a model of MLflow, beside the checkpoint itself.

They are what `mlflow.pyfunc.save_model` would write, which would take a second to be imported.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

__all__ = ["CHECKPOINT", "checkpoint_files", "write_model_files"]

CHECKPOINT = "checkpoint"
"""The folder of a model with its checkpoint, which lacks what only training needs."""

LOADER = "rlplug.runs.pyfunc"
"""The module whose `_load_pyfunc` MLflow calls."""


def checkpoint_files(manifest: Mapping[str, Any]) -> list[str]:
    """The files of a checkpoint that acting needs, the manifest last."""
    files = [name for name in manifest["files"] if not name.startswith("training/")]
    return [*files, "manifest.json"]


def write_model_files(
    folder: Path, model: LoggedModel, run_id: str, signature: Mapping[str, Any], size: int
) -> None:
    """Write them for a model, of which the checkpoint has this many bytes."""
    needed = signature["requirements"]
    python = platform.python_version()
    environment = {
        "name": "rlplug",
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": needed}],
    }
    created = datetime.fromtimestamp(model.creation_timestamp / 1000, UTC)
    described: dict[str, Any] = {
        "artifact_path": model.artifact_location,
        "flavors": {
            "python_function": {
                "loader_module": LOADER,
                "data": CHECKPOINT,
                "python_version": python,
                "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
            }
        },
        "mlflow_version": metadata.version("mlflow"),
        "model_id": model.model_id,
        "model_size_bytes": size,
        "model_uuid": model.model_id,
        "run_id": run_id,
        "utc_time_created": f"{created:%Y-%m-%d %H:%M:%S.%f}",
    }
    example = signature.get("example")
    if example is not None:
        described["signature"] = {
            name: json.dumps(signature[name]) for name in ("inputs", "outputs", "params")
        }
        described["saved_input_example_info"] = {
            "artifact_path": "input_example.json",
            "params": "true",
            "serving_input_path": "serving_input_example.json",
            "type": "ndarray",
        }
        for name in ("input_example.json", "serving_input_example.json"):
            (folder / name).write_text(json.dumps(example) + "\n")
    (folder / "requirements.txt").write_text(_lines(needed))
    # YAML has JSON in it.
    (folder / "conda.yaml").write_text(json.dumps(environment, indent=1) + "\n")
    (folder / "python_env.yaml").write_text(
        json.dumps({"python": python, "dependencies": ["-r requirements.txt"]}, indent=1) + "\n"
    )
    (folder / "MLmodel").write_text(json.dumps(described, indent=1) + "\n")


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
