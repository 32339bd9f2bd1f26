"""Trees of tensors and plain values: what their files hold, and what is told of damaged ones."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file

from rlplug.errors import RequestError
from rlplug.trees import (
    INDEX,
    read_file,
    read_tree,
    replace_tree,
    write_file,
    write_tree,
)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def test_whatever_a_state_is_made_of_comes_back(tmp_path: Path) -> None:
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tree: dict[str, Any] = {
        "tensors": {str(dtype): torch.arange(5).to(dtype) for dtype in dtypes},
        "shapes": [torch.tensor(3.5), torch.zeros(0, 2), torch.ones(2, 3).T, torch.ones(4)[::2]],
        "arrays": (numpy.arange(6).reshape(2, 3)[:, ::2], numpy.array(1.5), numpy.zeros(0)),
        "bytes": [b"", b"some\0bytes"],
        "plain": {1: None, "x": True, "nan": float("nan"), "big": 2**100, "tuple": (1, (2,))},
        "numbers": numpy.float64(0.1),
    }
    files = write_tree(tmp_path, tree).files
    assert {one.name for one in tmp_path.iterdir()} == set(files)
    back = read_tree(tmp_path)
    for name, tensor in tree["tensors"].items():
        assert back["tensors"][name].dtype == tensor.dtype
        assert torch.equal(back["tensors"][name], tensor)
    for one, other in zip(tree["shapes"], back["shapes"], strict=True):
        assert torch.equal(one, other)
    for one, other in zip(tree["arrays"], back["arrays"], strict=True):
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())
    assert back["bytes"] == tree["bytes"]
    assert str(back["plain"]) == str(tree["plain"])
    assert back["numbers"] == 0.1


def test_what_is_not_compared_stands_in_a_file_of_its_own(tmp_path: Path) -> None:
    tree = {"w": torch.ones(2), "p": b"xy", "run": {"clock": numpy.array([1.5])}}
    written = write_tree(tmp_path, tree)
    first, second, index = written.files
    assert dict(written.files) == {name: digest(tmp_path / name) for name in names(tmp_path)}
    assert first == f"tensors-{written.files[first][:16]}.safetensors"
    assert second == f"aside-{written.files[second][:16]}.safetensors"
    assert (index, set(load_file(tmp_path / first))) == (INDEX, {"/w"})
    assert set(load_file(tmp_path / second)) == {"bytes:/p", "/run/clock"}
    assert json.loads((tmp_path / INDEX).read_text()) == {
        "tensors": first,
        "sha256": written.files[first],
        "tree": {
            "pairs": [
                ["w", {"tensor": "/w"}],
                ["p", {"bytes": "/p"}],
                ["run", {"pairs": [["clock", {"array": "/run/clock"}]]}],
            ]
        },
        "aside": {"tensors": second, "sha256": written.files[second]},
    }
    assert len(write_tree(tmp_path / "plain", {"w": torch.ones(2)}).files) == 2


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        (1j, "complex"),
        (numpy.array([1j]), "an array of complex128"),
        (numpy.array(["x"]), "an array of <U1"),
        (numpy.array([None]), "an array of object"),
        (torch.tensor([1j]), "a tensor of torch.complex64"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place_and_leaves_no_file(
    tmp_path: Path, value: Any, what: str
) -> None:
    with pytest.raises(RequestError) as raised:
        write_tree(tmp_path, {"plugin": {"parts": [1, value]}})
    assert str(raised.value) == (
        f"the state at plugin/parts/1 is {what}, which is not saved.\n"
        "  give tensors, arrays, numbers, texts, and lists or mappings of them"
    )
    assert names(tmp_path) == set()


# -- over an earlier one -------------------------------------------------------------------------


def test_a_tree_that_is_replaced_is_there_until_the_other_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new" / "state"
    found: list[Any] = []
    replace_tree(folder, {"n": 1, "w": torch.ones(2), "p": b"1"})
    (folder / "notes.safetensors").touch()
    before = names(folder)
    really = os.fsync

    def sync(handle: int) -> None:
        really(handle)
        if os.fstat(handle).st_ino == folder.stat().st_ino:
            found.append(read_tree(folder)["n"])
        else:
            found.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", sync)
    replace_tree(folder, {"n": 2, "w": torch.zeros(2), "p": b"2"})
    inodes = sorted((folder / name).stat().st_ino for name in names(folder) - {"notes.safetensors"})
    # First the three files, then the folder with all but the index, then the folder with that.
    assert (sorted(found[:3]), found[3:]) == (inodes, [1, 2])
    # The files of the earlier one are gone, and no others.
    assert names(folder) & before == {INDEX, "notes.safetensors"}
    assert len(names(folder)) == len(before) == 4
    assert read_tree(folder)["p"] == b"2"


# -- reading -------------------------------------------------------------------------------------


def test_a_tree_that_is_not_there_or_damaged_is_told_with_the_path(tmp_path: Path) -> None:
    def refused(changed: Any, of: str) -> str:
        folder = tmp_path / str(len(names(tmp_path)))
        first, aside, _ = write_tree(folder, {"w": torch.ones(2), "p": b"1"}).files
        path = folder / {"tensors": first, "aside": aside, "index": INDEX}[of]
        changed(path)
        with pytest.raises(RequestError) as raised:
            read_tree(folder)
        return str(raised.value).replace(str(path), "PATH")

    def saying(**changes: Any) -> Any:
        def change(path: Path) -> None:
            path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

        return change

    missing = "there is no saved state at PATH.\n  give the folder that save_state wrote"
    advice = "\n  it is damaged or cut short: use an older checkpoint"
    other = f"the saved state PATH cannot be read: its content is not what was written.{advice}"
    gone = f"the saved state PATH cannot be read: it is no file of its folder.{advice}"
    assert refused(Path.unlink, "index") == missing
    for of in ("tensors", "aside"):
        assert refused(Path.unlink, of) == gone
    for of in ("tensors", "aside"):
        assert refused(lambda path: path.write_bytes(path.read_bytes()[:-1]), of) == other
    told = refused(lambda path: path.write_text("{"), "index")
    assert told.startswith("the saved state PATH cannot be read: JSONDecodeError: ")
    assert told.endswith(advice)
    # The index is to blame for what it says of sound files.
    for changes, why in (
        ({"aside": {"tensors": "x"}}, "KeyError: 'sha256'"),
        ({"aside": {"sha256": "x"}}, "KeyError: 'tensors'"),
        ({"tree": {"tensor": "/v"}}, "KeyError: '/v'"),
    ):
        expected = f"the saved state PATH cannot be read: {why}.{advice}"
        assert refused(saying(**changes), "index") == expected


def test_a_file_holds_a_tree_of_its_own_under_the_name_of_its_content(
    tmp_path: Path, synced: list[int]
) -> None:
    tree = {"rows": [[0, 7, {"x": numpy.arange(3)}]], "n": (1, None)}
    name, sha256 = write_file(tmp_path, "rows", tree)
    path = tmp_path / name
    assert (names(tmp_path), sha256) == ({name}, digest(path))
    assert name == f"rows-{sha256[:16]}.safetensors"
    assert synced == [path.stat().st_ino]
    assert load_file(path)["/rows/0/2/x"].tolist() == [0, 1, 2]
    back = read_file(path, sha256)
    ((env, first, columns),) = back["rows"]
    assert (env, first, columns["x"].tolist(), back["n"]) == (0, 7, [0, 1, 2], (1, None))
    assert write_file(tmp_path, "rows", tree) == (name, sha256)
