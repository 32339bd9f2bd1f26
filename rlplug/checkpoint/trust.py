"""Who wrote a checkpoint or a run: what came from somebody else chooses no imports by itself.

A key in the user's config folder signs manifests and the options of runs. Whatever lies in a runs
folder without that signature may come from anybody, until the user trusts it, which signs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from rlplug.checkpoint.manifest import (
    CONFIG,
    MANIFEST,
    POLICY,
    STEPS,
    Manifest,
    read_manifest,
    reading,
    step_name,
)
from rlplug.config.sources import read_toml
from rlplug.config.toml import flat
from rlplug.durable import unfinished, write_durably
from rlplug.errors import RequestError
from rlplug.tracking.location import runs_folder

OF_POLICY = ("algorithm", "addons", "modules")
"""The sections of a config that a policy is made from."""
OF_RUN = (*OF_POLICY, "env", "run.env")
"""All sections and options that may name code to import."""

SIGNATURE = "signature"
"""The file in a run's folder with the signature of its options."""


def admit(
    folder: Path,
    parts: Iterable[str],
    *,
    trust: bool,
    arguments: Mapping[str, Any] | None = None,
) -> bool:
    """Whether the checkpoint or the run in a folder was written, or is trusted, by this user.

    Any other is refused if its config names code to import: importing runs code. Installed plugins
    are no danger, as a config chooses among them only. `parts` are the sections or options that
    will be used: the others import nothing. `arguments` are those of the environment.
    """
    if _is_own(folder):
        return True
    if trust:
        _remember(folder)
        return True
    with reading(folder, CONFIG):
        options = {**flat(read_toml(folder / CONFIG)), **flat({"arguments": arguments or {}})}
    used = tuple(f"{part}." for part in (*parts, "arguments"))
    code = [
        f"{name} = {value!r}"
        for name, value in options.items()
        if f"{name}.".startswith(used) and _may_import(name, value)
    ]
    if code:
        raise RequestError(
            f"{folder} was not written by this user on this machine, and its config names code to "
            "import:",
            *code,
            "try: --trust, once (in Python: trust=True; in MLflow: RLPLUG_TRUST=true), if you "
            "trust who made it",
        )
    return False


def signed(manifest: Manifest) -> Manifest:
    """The manifest with the signature of this user."""
    unsigned = attrs.evolve(manifest, signature="")
    return attrs.evolve(unsigned, signature=_signature_of(unsigned.content()))


def sign_options(run: Path) -> None:
    """Sign the options of a run; where that cannot be done, they need to be trusted later."""
    with contextlib.suppress(OSError):
        signature = _signature_of((run / CONFIG).read_bytes())
        write_durably(run / SIGNATURE, signature.encode())


def own_copy(checkpoint: Path) -> Path:
    """The same checkpoint in the folder of its run, or else the one given.

    Models in MLflow are copies of checkpoints.
    """
    manifest = read_manifest(checkpoint)
    own = runs_folder() / "work" / manifest.run_id / "checkpoints" / step_name(manifest.step)
    written = (checkpoint / MANIFEST).read_bytes()
    is_same = (own / MANIFEST).is_file() and (own / MANIFEST).read_bytes() == written
    return own if is_same else checkpoint


def _is_own(folder: Path) -> bool:
    """Whether the checkpoint, or the options of the run, in a folder bear our signature."""
    with contextlib.suppress(OSError, RequestError):
        if (folder / MANIFEST).exists():
            manifest = read_manifest(folder)
            there = manifest.signature.encode(errors="replace")
            # The other files are tensors; who has not verified them all knows these two.
            return _equal(signed(manifest).signature, there) and all(
                hashlib.sha256((folder / name).read_bytes()).hexdigest() == manifest.files[name]
                for name in (CONFIG, f"{POLICY}/state.json")
            )
        options = (folder / CONFIG).read_bytes()
        if (folder / SIGNATURE).is_file():
            return _equal(_signature_of(options), (folder / SIGNATURE).read_bytes())
        # The signature is not in MLflow, from which a run may have been downloaded.
        return any(
            (path / CONFIG).read_bytes() == options and _is_own(path)
            for path in (folder / "checkpoints").glob(STEPS)
        )
    return False


def _equal(ours: str, there: bytes) -> bool:
    return bool(ours) and hmac.compare_digest(ours.encode(), there)


def _remember(folder: Path) -> None:
    """Sign the checkpoint, or the run with all of its checkpoints."""
    run = folder.parent.parent if folder.parent.name == "checkpoints" else folder
    sign_options(run)
    for path in {folder, *run.glob(f"checkpoints/{STEPS}")}:
        with contextlib.suppress(OSError, RequestError):
            write_durably(path / MANIFEST, signed(read_manifest(path)).content())


def _signature_of(content: bytes) -> str:
    """The signature of this user; empty where no key can be kept."""
    file = Path(click.get_app_dir("rlplug")) / "key"
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            new = unfinished(file)
            new.touch(0o600)
            new.write_bytes(secrets.token_bytes(32))
            # Another process may do the same: the first one's is the key.
            with contextlib.suppress(FileExistsError):
                os.link(new, file)
            new.unlink()
        return hmac.new(file.read_bytes(), content, "sha256").hexdigest()
    except OSError:
        return ""


def _may_import(name: str, value: Any) -> bool:
    """Whether a value, or a part of it, may be an import path, `module:name`.

    Of `http://…` as an encoder, `http` would be imported; environments may need such addresses.
    """
    if isinstance(value, str):
        is_address = "://" in value and name.startswith(("env.", "arguments."))
        return ":" in value and not (is_address and name != "env.wrappers")
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, Mapping | list | tuple) and any(
        _may_import(name, part) for part in parts
    )
