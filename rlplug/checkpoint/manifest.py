"""The manifest of a checkpoint: its metadata and file digests, written last.

A checkpoint may be damaged, or come from somebody else: all that is read of it is checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

from rlplug.config.strict import structure
from rlplug.errors import RequestError
from rlplug.review.record import rank

MANIFEST = "manifest.json"
FORMAT = 4

POLICY = "policy"
"""The folder with the state for acting: weights, extras, spaces, normalization."""
TRAINING = "training"
"""The folder with the rest of the training state: optimizers, generators, counters."""
REPLAY = "replay"
"""The folder with the rows of a replay buffer, beside that of the checkpoints."""
CONFIG = "config.toml"

_FILES = (CONFIG, f"{POLICY}/state.json", f"{TRAINING}/state.json")
"""The files that every checkpoint has; those with tensors are named after their content."""

STEPS = "step-*"
"""The folders of checkpoints."""


@attrs.frozen(kw_only=True)
class Manifest:
    """Metadata of a checkpoint, and the digests of its files."""

    run_id: str
    step: int = attrs.field(validator=attrs.validators.ge(0))
    updates: int = attrs.field(validator=attrs.validators.ge(0))
    plugins: Mapping[str, str]
    """Plugin → distribution and version that wrote the checkpoint."""
    evaluation: Mapping[str, float] = attrs.field(factory=dict)
    """Metrics of the evaluation at this step; empty without one."""
    finite: bool = True
    """Whether all weights are finite; otherwise it is never the best."""
    files: Mapping[str, str] = attrs.field(factory=dict)
    """Relative path → SHA-256."""
    replay: Mapping[str, str] = attrs.field(factory=dict)
    """Files of the replay buffer in the run's folder `replay`: name → SHA-256; empty without."""
    state_digest: str = ""
    """Equal for equal states, whatever their files are; readings of the clock do not count."""
    format: int = FORMAT
    signature: str = ""
    """That of the user who wrote or trusts it; `rlplug.checkpoint.trust` makes it."""

    def content(self) -> bytes:
        """The file content."""
        return json.dumps(attrs.asdict(self), indent=2).encode() + b"\n"


def step_name(step: int) -> str:
    """The name of the folder of the checkpoint at a step."""
    return f"step-{step:012d}"


def checkpoints_in(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, in order of steps."""
    return sorted(path for path in folder.glob(STEPS) if (path / MANIFEST).is_file())


def manifests_in(
    folder: Path, run_id: str = ""
) -> tuple[dict[Path, Manifest], dict[Path, RequestError]]:
    """The checkpoints of a run in order of steps, and why others in its folder are not used."""
    manifests, problems = {}, {}
    for path in sorted(folder.glob(STEPS)):
        try:
            manifests[path] = read_manifest(path, run_id)
        except RequestError as error:
            problems[path] = error
    return manifests, problems


def best_of(manifests: Mapping[Path, Manifest], count: int = 1) -> list[Path]:
    """The checkpoints with the best evaluations, best first.

    If none was evaluated, the last one; none at all where no checkpoint has finite weights.
    """
    ranks = {
        path: rank(manifest.evaluation, manifest.step)
        for path, manifest in manifests.items()
        if manifest.finite
    }
    evaluated = [path for path in ranks if ranks[path][0] > float("-inf")]
    if not evaluated:
        return list(ranks)[-1:]
    return sorted(evaluated, key=ranks.__getitem__, reverse=True)[:count]


def replay_folder(checkpoint: Path) -> Path:
    """Where the files of the replay buffer of a checkpoint are."""
    return checkpoint.absolute().parent.parent / REPLAY


def read_manifest(folder: Path, run_id: str | None = None) -> Manifest:
    """Read the manifest of a checkpoint; with a `run_id`, of one that this run wrote there.

    Of a run whose id is not known, "", only the step has to be that of the folder's name.
    """
    path = folder / MANIFEST
    try:
        # To read a pipe or a device would take forever.
        if not path.is_file():
            raise RequestError(
                f"{folder} is not a checkpoint: it has no {MANIFEST}.",
                "try: a folder step-… of the run's checkpoints",
            )
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(folder, f"its {MANIFEST} cannot be read: {error}") from error
    version = content.get("format") if isinstance(content, dict) else FORMAT
    if version != FORMAT:
        raise RequestError(
            f"the checkpoint {folder} has format {version!r}, this rlplug reads {FORMAT}.",
            "try: the version of rlplug that wrote it",
        )
    manifest, problems = structure(Manifest, content, MANIFEST)
    if manifest is None:
        reasons = [f"{problem.path}: {problem.message}" for problem in problems]
        raise damaged(folder, f"invalid are {'; '.join(reasons)}")
    if run_id and manifest.run_id != run_id:
        reason = f"belongs to run {manifest.run_id}, not to {run_id}"
    elif run_id is not None and folder.name != step_name(manifest.step):
        reason = f"is one of step {manifest.step:,}"
    else:
        return manifest
    raise RequestError(
        f"the checkpoint {folder} {reason}.", f"try: rlplug run --init-from {folder}"
    )


def verify(
    folder: Path, run_id: str | None = None, *, resume: bool = False, replay: bool = False
) -> Manifest:
    """Verify the digests of all files; returns the manifest.

    To `resume`, the state of training must be there, which checkpoints of models lack; `replay`
    verifies the files of the replay buffer, too.
    """
    manifest = read_manifest(folder, run_id)
    for name in _FILES:
        if name not in manifest.files:
            raise damaged(folder, f"its {MANIFEST} has no digest of {name}")
    trains = resume or (folder / TRAINING).is_dir()
    for name, digest in manifest.files.items():
        if trains or not name.startswith(f"{TRAINING}/"):
            _verify_file(folder, folder, name, digest)
    for name, digest in manifest.replay.items() if replay else ():
        _verify_file(folder, replay_folder(folder), name, digest)
    return manifest


def _verify_file(checkpoint: Path, folder: Path, name: str, digest: str) -> None:
    path = folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise damaged(checkpoint, f"its {MANIFEST} names {name!r}, which is outside of it")
    try:
        if not path.is_file():
            raise damaged(checkpoint, f"{name} is missing, or is no file")
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        reason = error.strerror or error
        raise damaged(checkpoint, f"{name} cannot be read: {reason}") from error
    if actual != digest:
        raise damaged(checkpoint, f"{name} does not match its digest")


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Name the checkpoint in every error while this part of it is read and used.

    Valid digests do not make a content valid: it may raise anything, in the core and in plugins.
    """
    try:
        yield
    except RequestError as error:
        if str(folder) not in str(error):
            error.add_hint(f"in the checkpoint {folder}")
        raise
    except Exception as error:
        raise RequestError(
            f"the {what} of the checkpoint {folder} cannot be used:",
            f"{type(error).__name__}: {error}",
            *getattr(error, "__notes__", ()),
            "try: another checkpoint; this one is damaged, or does not fit the installed plugins",
        ) from error


def damaged(folder: Path, reason: str) -> RequestError:
    """The error for a damaged checkpoint."""
    return RequestError(
        f"the checkpoint {folder} is damaged: {reason}.",
        "try: another checkpoint of the run: RUN@STEP; rlplug show RUN lists them",
    )
