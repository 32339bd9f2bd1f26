"""The rows of a replay buffer in files beside the checkpoints: each row is written once.

Full blocks of rows never change: they are written to a file when they are first saved, and later
checkpoints refer to it. The newest rows, which may still change, and priorities are written anew
for each checkpoint. All files are named after their content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from rlplug.batch.nested import first_leaf, leaves, tree_map
from rlplug.durable import sync_folder
from rlplug.errors import RequestError
from rlplug.feeds import OpenFeed
from rlplug.trees import pack, read_file, write_file

__all__ = ["ReplayCopy", "ReplayFiles", "Written", "restore_rows"]

_FILE_BYTES = 2**28
"""About how much of a buffer is written to one file."""

Block = tuple[int, int]
"""Environment and first row; the first row of the oldest block may have been overwritten."""


@attrs.frozen
class ReplayCopy:
    """What changed in a buffer since it was last saved."""

    block: int
    rows: int
    newest: list[int]
    blocks: list[Block]
    """All full blocks."""
    columns: Mapping[Block, Mapping[str, Any]]
    """Those of them whose digest is not known."""
    tails: Sequence[Mapping[str, Any]]
    """The rows after the last full block of each environment."""
    state: Mapping[str, Any]


@attrs.frozen
class Written:
    """The files of a buffer."""

    files: Mapping[str, str]
    """Name → SHA-256; the first has the newest rows and what is not rows."""
    digests: Mapping[Block, str] = attrs.field(factory=dict)
    """Whole block → the digest of its content."""
    file_of: Mapping[Block, str] = attrs.field(factory=dict)
    """Environment and number of a block → the file that has it."""

    @property
    def content(self) -> bytes:
        """What tells whether two buffers are equal, whenever their rows were written."""
        return json.dumps(next(iter(self.files.values()))).encode()


class ReplayFiles:
    """Writes the rows of a buffer, and knows which ones are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known = Written({})
        """The files that the last checkpoint on the disk refers to."""
        for leftover in folder.glob(".unfinished-*"):
            leftover.unlink(missing_ok=True)

    def copy(self, feed: OpenFeed) -> ReplayCopy | None:
        """A copy of what is not written yet; None for a feed without rows."""
        rows = feed.rows
        if rows is None:
            return None
        blocks: list[Block] = []
        columns, tails, newest = {}, [], []
        for env, (oldest, last) in enumerate(rows.kept()):
            tail = last // rows.block * rows.block
            for start in range(oldest // rows.block * rows.block, tail, rows.block):
                first = max(start, oldest)
                blocks.append((env, first))
                if (env, first) not in self.known.digests:
                    columns[env, first] = rows.copy_rows(env, first, start + rows.block)
            tails.append(rows.copy_rows(env, max(tail, oldest), last + 1))
            newest.append(last)
        state = feed.get_state_of_rows()
        return ReplayCopy(rows.block, rows.rows, newest, blocks, columns, tails, state)

    def write(self, copy: ReplayCopy) -> Written:
        """Write what is new; later copies rely on it if it becomes `known`."""
        # Without parents: a run's folder that was deleted meanwhile is not to come back in part.
        self.folder.mkdir(exist_ok=True)
        known = self.known
        digests = {block: _digest(columns) for block, columns in copy.columns.items()}
        digests = {**known.digests, **digests}
        file_of, sha256 = dict(known.file_of), dict(known.files)
        # A block whose oldest rows were overwritten since has another digest, and its old file.
        pieces: list[list[Any]] = [
            [env, first, columns]
            for (env, first), columns in copy.columns.items()
            if (env, first // copy.block) not in file_of
        ]
        size = sum(leaf.nbytes for leaf in leaves(pieces[0][2])) if pieces else 1
        at_once = max(_FILE_BYTES // size, 1)
        for start in range(0, len(pieces), at_once):
            group = pieces[start : start + at_once]
            name, sha256[name] = write_file(self.folder, "rows", {"pieces": group})
            file_of.update({(env, first // copy.block): name for env, first, _ in group})
        tree = {
            "block": copy.block,
            "rows": copy.rows,
            "newest": copy.newest,
            "digests": [[*block, digests[block]] for block in copy.blocks],
            "tails": list(copy.tails),
            "state": copy.state,
        }
        last, sha256[last] = write_file(self.folder, "last", tree)
        sync_folder(self.folder)
        kept = {(env, first // copy.block) for env, first in copy.blocks}
        file_of = {block: name for block, name in file_of.items() if block in kept}
        names = (last, *sorted(set(file_of.values())))
        whole = {block: digests[block] for block in copy.blocks if block[1] % copy.block == 0}
        return Written({name: sha256[name] for name in names}, whole, file_of)

    def resume_from(self, files: Mapping[str, str]) -> None:
        """Go on from a checkpoint that refers to these files, and write only what they lack."""
        last, *others = files
        tree = read_file(self.folder / last, files[last])
        block = tree["block"]
        digests = {(env, first): digest for env, first, digest in tree["digests"]}
        whole = {key: digest for key, digest in digests.items() if key[1] % block == 0}
        file_of = {
            (env, first // block): name
            for name in others
            for env, first, _ in read_file(self.folder / name, files[name])["pieces"]
        }
        self.known = Written(files, whole, file_of)

    def delete_all_but(self, names: Collection[str]) -> None:
        """Delete the files that no checkpoint refers to."""
        for path in self.folder.glob("*.safetensors"):
            if path.name not in names:
                path.unlink(missing_ok=True)


def restore_rows(folder: Path, files: Mapping[str, str], feed: OpenFeed) -> None:
    """Put the rows of these files into a feed."""
    rows = feed.rows
    assert rows is not None
    last, *others = files
    tree = read_file(folder / last, files[last])
    rows.restart(tree["newest"], tree["rows"])
    kept = rows.kept()
    missing = {(env, first) for env, first, _ in tree["digests"]}
    for name in others:
        for env, begin, columns in read_file(folder / name, files[name])["pieces"]:
            first = max(begin, kept[env][0])
            # Files also have rows that were overwritten since.
            if (env, first) in missing and first - begin < len(first_leaf(columns)):
                kept_rows = itemgetter(slice(first - begin, None))
                rows.put_rows(env, first, tree_map(kept_rows, columns))
                missing.remove((env, first))
    if missing:
        raise RequestError(
            f"{len(missing)} blocks of the replay buffer are in none of its files.",
            "try: an older checkpoint",
        )
    for env, columns in enumerate(tree["tails"]):
        oldest, newest = kept[env]
        rows.put_rows(env, max(newest // tree["block"] * tree["block"], oldest), columns)
    feed.set_state_of_rows(tree["state"])


def _digest(columns: Mapping[str, Any]) -> str:
    tensors: dict[str, Tensor] = {}
    pack(columns, tensors)
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()
