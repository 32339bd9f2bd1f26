"""The rows of a replay buffer in files beside the checkpoints: each row is written once.

Full blocks of rows never change: they are written to a file when they are first saved, and later
checkpoints refer to it. The newest rows, which may still change, and priorities are written anew
for each checkpoint. All files are named after their content.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import attrs

from rlplug.batch.nested import leaves, tree_map
from rlplug.durable import sync_folder
from rlplug.errors import RequestError
from rlplug.feeds import OpenFeed
from rlplug.trees import read_file, write_file

_FILE_BYTES = 2**28
"""About how much of a buffer is written to one file."""

Block = tuple[int, int]
"""Environment and number of a block, counted from its first row ever."""


@attrs.frozen
class ReplayCopy:
    """What changed in a buffer since it was last saved."""

    block: int
    """Rows of a block."""
    rows: int
    newest: list[int]
    blocks: Sequence[Block]
    """All full blocks; the oldest rows of the first may have been overwritten."""
    columns: Mapping[Block, tuple[int, Mapping[str, Any]]]
    """Of those that are in no file, the first row and the rows."""
    tails: Sequence[Mapping[str, Any]]
    """The rows after the last full block of each environment."""
    state: Mapping[str, Any]


@attrs.frozen
class Written:
    """The files of a buffer."""

    files: Mapping[str, str]
    """Name → SHA-256; the first has the newest rows and what is not rows."""
    file_of: Mapping[Block, str] = attrs.field(factory=dict)
    """Full block → the file that has it."""


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
        size, kept, state = rows.block, rows.kept(), feed.get_state_of_rows()
        blocks = [
            (env, number)
            for env, (oldest, last) in enumerate(kept)
            for number in range(oldest // size, last // size)
        ]
        columns = {}
        for env, number in blocks:
            if (env, number) not in self.known.file_of:
                first = max(number * size, kept[env][0])
                columns[env, number] = first, rows.copy_rows(env, first, (number + 1) * size)
        tails = [
            rows.copy_rows(env, max(last // size * size, oldest), last + 1)
            for env, (oldest, last) in enumerate(kept)
        ]
        newest = [last for _, last in kept]
        return ReplayCopy(size, rows.rows, newest, blocks, columns, tails, state)

    def write(self, copy: ReplayCopy) -> Written:
        """Write what is new; later copies rely on it if it becomes `known`."""
        # Without parents: a run's folder that was deleted meanwhile is not to come back in part.
        self.folder.mkdir(exist_ok=True)
        file_of, sha256 = dict(self.known.file_of), dict(self.known.files)
        blocks = list(copy.columns)
        size = sum(leaf.nbytes for leaf in leaves(copy.columns[blocks[0]][1])) if blocks else 1
        at_once = max(_FILE_BYTES // size, 1)
        for start in range(0, len(blocks), at_once):
            group = blocks[start : start + at_once]
            pieces = [[*block, *copy.columns[block]] for block in group]
            name, sha256[name] = write_file(self.folder, "rows", {"pieces": pieces})
            file_of.update(dict.fromkeys(group, name))
        file_of = {block: file_of[block] for block in copy.blocks}
        tree = {
            "block": copy.block,
            "rows": copy.rows,
            "newest": copy.newest,
            "file_of": [[*block, name] for block, name in file_of.items()],
            "tails": list(copy.tails),
            "state": copy.state,
        }
        last, sha256[last] = write_file(self.folder, "last", tree)
        sync_folder(self.folder)
        names = (last, *sorted(set(file_of.values())))
        return Written({name: sha256[name] for name in names}, file_of)

    def resume_from(self, files: Mapping[str, str]) -> None:
        """Go on from a checkpoint that refers to these files, and write only what they lack."""
        last = next(iter(files))
        index: list[tuple[int, int, str]] = read_file(self.folder / last, files[last])["file_of"]
        file_of = {(env, number): name for env, number, name in index}
        self.known = Written(files, file_of)

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
    missing = {(env, number) for env, number, _ in tree["file_of"]}
    for name in others:
        for env, number, begin, columns in read_file(folder / name, files[name])["pieces"]:
            # Files also have rows that were overwritten since.
            if (env, number) in missing:
                first = max(begin, kept[env][0])
                kept_rows = itemgetter(slice(first - begin, None))
                rows.put_rows(env, first, tree_map(kept_rows, columns))
                missing.remove((env, number))
    if missing:
        raise RequestError(
            f"{len(missing)} blocks of the replay buffer are in none of its files.",
            "try: an older checkpoint",
        )
    for env, columns in enumerate(tree["tails"]):
        oldest, newest = kept[env]
        rows.put_rows(env, max(newest // tree["block"] * tree["block"], oldest), columns)
    feed.set_state_of_rows(tree["state"])
