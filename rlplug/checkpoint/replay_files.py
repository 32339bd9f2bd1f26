"""The rows of a replay buffer in files beside the checkpoints: each row is written once.

Full blocks of rows never change: they are written to a file when they are first saved, and later
checkpoints refer to it. The newest rows, which may still change, and priorities are written anew
for each checkpoint. All files are named after their content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.batch.nested import first_leaf
from rlplug.durable import sync_folder
from rlplug.errors import RequestError
from rlplug.trees import pack, read_file, write_file

if TYPE_CHECKING:
    from torch import Tensor

    from rlplug.feeds import OpenFeed

__all__ = ["ReplayCopy", "ReplayFiles", "Written", "restore_rows"]

_FILE_BYTES = 2**28
"""About how much of a buffer is written to one file."""


@attrs.frozen
class _Piece:
    """Copied rows of one environment."""

    env: int
    first: int
    columns: Mapping[str, Any]
    is_saved: bool
    """Whether a file has them already: they are part of the digest only."""


@attrs.frozen
class ReplayCopy:
    """What changed in a buffer since it was last saved."""

    block: int
    rows: int
    newest: list[int]
    blocks: list[tuple[int, int]]
    """Environment and first row of all full blocks."""
    pieces: list[_Piece]
    tails: Sequence[Mapping[str, Any]]
    """The rows after the last full block of each environment."""
    state: Mapping[str, Any]


class ReplayFiles:
    """Writes the rows of a buffer, and knows which ones are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_of: dict[tuple[int, int], str] = {}
        """Environment and number of a block → the file that has it."""
        self._digests: dict[tuple[int, int], str] = {}
        """Environment and first row of a whole block → the digest of its content."""
        self._sha256: dict[str, str] = {}
        for leftover in folder.glob(".unfinished-*"):
            leftover.unlink(missing_ok=True)

    def copy(self, feed: OpenFeed) -> ReplayCopy | None:
        """A copy of what is not written yet; None for a feed without rows."""
        rows = feed.rows
        if rows is None:
            return None
        blocks, pieces, tails, newest = [], [], [], []
        for env, (oldest, last) in enumerate(rows.kept()):
            for number in range(oldest // rows.block, last // rows.block):
                first, stop = max(number * rows.block, oldest), (number + 1) * rows.block
                blocks.append((env, first))
                if (env, first) not in self._digests:
                    is_saved = (env, number) in self._file_of
                    columns = rows.copy_rows(env, first, stop)
                    pieces.append(_Piece(env, first, columns, is_saved))
            tail = max(last // rows.block * rows.block, oldest)
            tails.append(rows.copy_rows(env, tail, last + 1))
            newest.append(last)
        state = feed.get_state_of_rows()
        return ReplayCopy(rows.block, rows.rows, newest, blocks, pieces, tails, state)

    def write(self, copy: ReplayCopy) -> Written:
        """Write what is new; `committed` makes later copies rely on it."""
        # Without parents: a run's folder that was deleted meanwhile is not to come back in part.
        self.folder.mkdir(exist_ok=True)
        digests, file_of, sha256 = dict(self._digests), dict(self._file_of), dict(self._sha256)
        partial: dict[tuple[int, int], str] = {}
        for piece in copy.pieces:
            found = _digest(piece.columns)
            whole = piece.first % copy.block == 0
            (digests if whole else partial)[piece.env, piece.first] = found
        new = []
        for group in _groups([piece for piece in copy.pieces if not piece.is_saved]):
            rows = [[piece.env, piece.first, piece.columns] for piece in group]
            name, sha256[name] = write_file(self.folder, "rows", {"pieces": rows})
            new.append(name)
            file_of.update({(piece.env, piece.first // copy.block): name for piece in group})
        tree: dict[str, Any] = {
            "block": copy.block,
            "rows": copy.rows,
            "newest": copy.newest,
            "digests": [[*one, partial.get(one) or digests[one]] for one in copy.blocks],
            "tails": list(copy.tails),
            "state": copy.state,
        }
        last, digest = write_file(self.folder, "last", tree)
        sync_folder(self.folder)
        kept = {(env, first // copy.block) for env, first in copy.blocks}
        file_of = {block: name for block, name in file_of.items() if block in kept}
        blocks = set(copy.blocks)
        return Written(
            files={last: digest, **{name: sha256[name] for name in sorted(set(file_of.values()))}},
            new=(*new, last),
            digests={block: one for block, one in digests.items() if block in blocks},
            file_of=file_of,
        )

    def committed(self, written: Written) -> None:
        """A checkpoint that refers to these files is on the disk."""
        self._digests, self._file_of = written.digests, written.file_of
        self._sha256 = dict(written.files)

    def resume_from(self, files: Mapping[str, str]) -> None:
        """Go on from a checkpoint that refers to these files, and write only what they lack."""
        last, *others = files
        tree = read_file(self.folder / last, files[last])
        block = tree["block"]
        self._digests = {
            (env, first): found for env, first, found in tree["digests"] if first % block == 0
        }
        self._file_of = {
            (env, first // block): name
            for name in others
            for env, first, _ in read_file(self.folder / name, files[name])["pieces"]
        }
        self._sha256 = dict(files)

    def delete_all_but(self, names: Collection[str]) -> list[str]:
        """Delete the files that no checkpoint refers to; returns their names."""
        gone = [one for one in self.folder.glob("*.safetensors") if one.name not in names]
        for one in gone:
            one.unlink(missing_ok=True)
        return [one.name for one in gone]


@attrs.frozen
class Written:
    """The files of a buffer."""

    files: Mapping[str, str]
    """Name → SHA-256; the first has the newest rows and what is not rows."""
    new: tuple[str, ...]
    digests: dict[tuple[int, int], str]
    file_of: dict[tuple[int, int], str]

    @property
    def content(self) -> bytes:
        """What tells whether two buffers are equal, whenever their rows were written."""
        return json.dumps(next(iter(self.files.values()))).encode()


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
                rows.put_rows(env, first, _from(columns, first - begin))
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


def _from(columns: Any, start: int) -> Any:
    """The columns without their first rows."""
    if isinstance(columns, Mapping):
        return {name: _from(part, start) for name, part in columns.items()}
    if isinstance(columns, tuple):
        return tuple(_from(part, start) for part in columns)
    return columns[start:]


def _digest(columns: Mapping[str, Any]) -> str:
    """The digest of some rows."""
    tensors: dict[str, Tensor] = {}
    pack(columns, tensors)
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.numpy().data)
    return found.hexdigest()


def _groups(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """The pieces in groups for one file each."""
    group: list[_Piece] = []
    size = 0
    for piece in pieces:
        tensors: dict[str, Tensor] = {}
        pack(piece.columns, tensors)
        size += sum(tensor.nbytes for tensor in tensors.values())
        group.append(piece)
        if size >= _FILE_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
