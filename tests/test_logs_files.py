"""Files of each format: what is found, counted and read, and what damaged ones are called."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from gymnasium import spaces
from pyarrow import parquet

from rlplug.errors import RequestError, UnsupportedSpaceError
from rlplug.logs import files
from rlplug.logs.recording import Recording, spaces_as_metadata, spaces_from_metadata
from rlplug.logs.roles import Column
from tests.log_files import columns, opened, write


def said_of(path: Path, **options: Any) -> str:
    """What is said of a log that cannot be read to its end, without the hint."""
    with pytest.raises(RequestError) as raised:
        list(opened(path, num_arms=3, **options).read(0, 4))
    return raised.value.message


def test_files_are_found_by_name_in_folders_and_by_pattern(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    paths = [
        write(tmp_path / name, columns(rows=2)) for name in ("b.csv", "a.PARQUET", "more/c.npz")
    ]
    odd = write(tmp_path / "d.pq", columns(rows=2))
    (tmp_path / "notes.txt").write_text("no rows")
    b, a, c = paths
    assert files.find_files([str(tmp_path)], "auto") == [a, b, odd, c]
    assert files.find_files([str(c), str(tmp_path / "?.csv*")], "auto") == [c, b]
    assert files.find_files([str(b), str(b)], "auto") == [b, b]
    # With a format, all files of a folder have it.
    assert tmp_path / "notes.txt" in files.find_files([str(tmp_path)], "csv")
    assert opened(odd).rows == 2


def test_names_without_files_are_refused_with_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "clicks.txt").write_text("no rows")
    with pytest.raises(RequestError) as raised:
        files.find_files([str(tmp_path)], "auto")
    assert raised.value.message == (
        f"data.files: folder '{tmp_path}' has no file that ends in .parquet, .pq, .csv, .npz."
    )
    assert raised.value.hints == (f"looked at: {tmp_path}",)
    missing = tmp_path / "click.txt"
    with pytest.raises(RequestError) as raised:
        files.find_files([str(missing)], "auto")
    assert raised.value.message == (
        f"data.files: there is no file '{missing}'. Did you mean 'clicks.txt'?"
    )
    assert raised.value.hints == (f"looked at: {missing}",)
    for name in ("none/x.csv", "*.csv"):
        with pytest.raises(RequestError) as raised:
            files.find_files([str(tmp_path / name)], "auto")
        assert raised.value.message == f"data.files: there is no file '{tmp_path / name}'."
    with pytest.raises(RequestError) as raised:
        files.open_file(tmp_path / "clicks.txt", "auto")
    assert raised.value.message == (
        "data.files: 'clicks.txt' ends in none of .parquet, .pq, .csv, .npz."
    )
    write(tmp_path / "clicks.csv", columns()).rename(tmp_path / "clicks.txt")
    assert opened(tmp_path / "clicks.txt", format="csv").rows == 10


@pytest.mark.parametrize("suffix", ["parquet", "csv", "npz"])
def test_a_file_tells_its_columns_rows_and_largest_number(tmp_path: Path, suffix: str) -> None:
    table: dict[str, Any] = {
        "whole": numpy.array([3, 7, 5]),
        "small": numpy.array([-3, -7, -5]),
        "float": numpy.array([0.5, 2.5, 1.0]),
        "flag": numpy.array([True, False, True]),
        "text": numpy.array(["a", "b", "c"]),
    }
    file = files.open_file(write(tmp_path / f"log.{suffix}", table), "auto")
    kinds = {name: column.kind for name, column in file.columns.items()}
    assert kinds == {"whole": "i", "small": "i", "float": "f", "flag": "b", "text": ""}
    assert not any(column.is_list for column in file.columns.values())
    assert (file.count(), file.maximum("whole"), file.maximum("small")) == (3, 7, -1)
    (block,) = file.blocks({"whole": "i", "flag": "b", "float": "f"}, 1)
    assert block[0] == 1
    assert {name: column.tolist() for name, column in block[1].items()} == {
        "whole": [7, 5],
        "flag": [False, True],
        "float": [2.5, 1.0],
    }
    assert list(file.blocks({"whole": "i"}, 3)) == []


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_a_file_without_rows_has_no_largest_number(tmp_path: Path, suffix: str) -> None:
    table = {name: column[:0] for name, column in columns().items()}
    file = files.open_file(write(tmp_path / f"log.{suffix}", table), "auto")
    assert (file.count(), file.maximum("action")) == (0, -1)
    assert list(file.blocks({"action": "i"}, 0)) == []


def test_the_largest_number_is_a_finite_one(tmp_path: Path) -> None:
    table = {
        "some": numpy.array([1.0, numpy.inf, 4.0, numpy.nan]),
        "none": numpy.full(4, numpy.nan),
    }
    file = files.open_file(write(tmp_path / "log.npz", table), "auto")
    assert (file.maximum("some"), file.maximum("none")) == (4, -1)


def test_lists_of_each_kind_are_arrays(tmp_path: Path) -> None:
    numbers = [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[7.0, 8.0], [9.0, 10.0], [11.0, 12.0]]]
    inner = pyarrow.list_(pyarrow.float64())
    kinds = {
        "list": pyarrow.list_(inner),
        "large": pyarrow.large_list(pyarrow.large_list(pyarrow.float64())),
        "fixed": pyarrow.list_(pyarrow.list_(pyarrow.float64(), 2), 3),
        "mixed": pyarrow.list_(pyarrow.list_(pyarrow.float64(), 2)),
    }
    table = pyarrow.table({name: pyarrow.array(numbers, kind) for name, kind in kinds.items()})
    parquet.write_table(table, tmp_path / "log.parquet")
    file = files.open_file(tmp_path / "log.parquet", "auto")
    for column in file.columns.values():
        assert column == Column(kind="f", type=column.type, is_list=True)
        assert "list<element: " in column.type
        assert "double" in column.type
    for first in (0, 1):
        ((start, block),) = file.blocks(dict.fromkeys(kinds, "f"), first)
        assert start == first
        for name in kinds:
            assert block[name].tolist() == numbers[first:], name


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("context", [[1.0, 2.0], [3.0, 4.0], [5.0], [6.0]], "has 1 values, other rows have 2"),
        ("context", [[1.0], [3.0], [5.0, 6.0], [7.0]], "has 2 values, other rows have 1"),
        ("context", [[1.0], [3.0], None, [7.0, 8.0]], "is missing"),
        ("action", [0, 1, None, 2], "is missing"),
        ("action", pyarrow.array([True, False, None, True]).cast("int64"), "is missing"),
    ],
)  # fmt: skip
def test_the_first_row_with_other_values_is_named(
    tmp_path: Path, name: str, values: Any, told: str
) -> None:
    table = {"action": [0] * 4, "reward": [0.0] * 4, name: values}
    path = write(tmp_path / "log.parquet", table)
    assert said_of(path) == f"log.parquet, row 2: column {name!r} {told}."
    # The row before it is the first one of all, and one of another group.
    for size in (1, 2):
        write(path, {one: column[1:] for one, column in table.items()}, row_group_size=size)
        if "values" not in told or size > 1:
            assert said_of(path) == f"log.parquet, row 1: column {name!r} {told}."


def test_missing_values_in_lists_are_named(tmp_path: Path) -> None:
    table = {"action": [0, 1], "reward": [0.0, 1.0], "action_mask": [[1, 1, 1], [1, None, 1]]}
    assert "column 'action_mask' is missing" in said_of(write(tmp_path / "log.parquet", table))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["0,1.50000000000,true", "1,x,false"],
         "line 3: column 'reward' holds 'x', expected a number"),
        (["0,1.50000000000,true", "1,2.5,maybe"],
         "line 3: column 'terminated' holds 'maybe', expected true or false"),
        (["0,1.50000000000,true", "1"],
         "line 3: column 'reward' is not there: the line has 1 values, the header 3"),
        (["0,1.50000000000,true", "1,2.5,false,9"],
         "line 3: column 'terminated' is not there: the line has 4 values, the header 3"),
    ],
)  # fmt: skip
def test_lines_of_a_csv_file_that_cannot_be_read_are_named(
    tmp_path: Path, lines: list[str], told: str
) -> None:
    """Far beyond the lines from which types are guessed, the header is line 1."""
    first, wrong = lines
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["action,reward,terminated", *[first] * 60_000, wrong]) + "\n")
    told = told.replace("line 3", f"line {60_002:,}")
    assert said_of(path) == f"log.csv, {told}."


def test_whole_numbers_of_a_csv_file_are_expected_where_the_first_ones_are(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "\n".join(["action,reward", *["1,0.5000000000000000"] * 60_000, "1.5,0.5"]) + "\n"
    )
    assert said_of(path) == (
        "log.csv, line 60,002: column 'action' holds '1.5', expected a whole number."
    )
    # Empty numbers are NaN, and blank lines are none.
    path.write_text("action,reward,weight\n1,0.5,\n\n2,1.5,1.0\n")
    assert said_of(path) == "log.csv, line 2: column 'weight' is missing or NaN."
    path.write_text("action,reward\n1,0.5\n\n2,1.5\n")
    assert opened(path).whole()["reward"].tolist() == [0.5, 1.5]


def test_texts_of_several_columns_are_named_with_their_first_line(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("action,reward,context_0,context_1\n0,1,2,b\n0,1,a,4\n0,1,c,d\n")
    with pytest.raises(RequestError) as raised:
        opened(path)
    told = str(raised.value)
    assert "'context_0' of log.csv holds string (line 3 holds 'a'), not numbers" in told
    assert "'context_1' of log.csv holds string (line 2 holds 'b'), not numbers" in told


def test_files_that_are_something_else_are_told(tmp_path: Path) -> None:
    for suffix in ("parquet", "npz"):
        path = tmp_path / f"log.{suffix}"
        path.write_text("action,reward\n0,1\n")
        assert said_of(path).startswith(f"log.{suffix} cannot be read as {suffix}: ")
    assert "it ends in the middle, or is something else (" in said_of(tmp_path / "log.parquet")
    with pytest.raises(RequestError) as raised:
        opened(tmp_path / "log.parquet")
    assert raised.value.hints == (f"looked at: {tmp_path / 'log.parquet'}",)


@pytest.mark.parametrize(("group", "where"), [(0, ""), (1, " after row 140,000")])
def test_a_damaged_row_group_is_told_with_the_rows_before_it(
    tmp_path: Path, group: int, where: str
) -> None:
    # Groups that are scanned one after the other.
    options = {"row_group_size": 140_000, "compression": "none", "use_dictionary": False}
    path = write(tmp_path / "log.parquet", columns(rows=140_010), **options)
    at = parquet.ParquetFile(path).metadata.row_group(group).column(3).data_page_offset
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + b"\xff" * 40 + whole[at + 40 :])
    with pytest.raises(RequestError) as raised:
        for _ in opened(path, num_arms=3).read(0, 140_000):
            pass
    assert f"log.parquet cannot be read as parquet{where}: " in str(raised.value)
    assert f"looked at: {path}" in str(raised.value)


def test_arrays_of_an_archive_have_as_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    given: dict[str, Any] = {
        "action": numpy.zeros(1200, int),
        "reward": numpy.zeros(1201),
        "note": 3,
    }
    numpy.savez(path, **given)
    assert said_of(path) == (
        "log.npz: its arrays have different numbers of rows: action 1,200, reward 1,201."
    )
    # An array without rows is no column.
    numpy.savez(path, **{**given, "reward": numpy.zeros(1200)})
    log = opened(path)
    assert log.rows == 1200
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("old.npy", b"\x93NUMPY\x09\x00rest")
    assert said_of(path) == (
        "log.npz cannot be read as npz: format (9, 0) of an array is not known."
    )


def test_an_array_that_is_shorter_than_its_header_says_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "log.npz", columns())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content[:-8] if name == "reward.npy" else content)
    assert (
        said_of(path)
        == "log.npz cannot be read as npz: cannot reshape array of size 9 into shape (10,)."
    )


def test_an_archive_that_is_spoiled_after_it_was_opened_is_told(tmp_path: Path) -> None:
    log = opened(write(tmp_path / "log.npz", columns()), num_arms=3)
    (tmp_path / "log.npz").write_bytes(b"no archive")
    with pytest.raises(RequestError) as raised:
        list(log.read(0, 4))
    assert raised.value.message == "log.npz cannot be read as npz: File is not a zip file."


def test_without_pyarrow_what_needs_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet_file, archive = (
        write(tmp_path / f"log.{suffix}", columns()) for suffix in ("parquet", "npz")
    )
    monkeypatch.setitem(sys.modules, "pyarrow.dataset", None)
    with pytest.raises(RequestError) as raised:
        opened(parquet_file)
    assert raised.value.message == ("reading log.parquet needs pyarrow, which is not installed.")
    assert raised.value.hints == ("try: pip install 'rlplug[parquet]'",)
    with pytest.raises(RequestError, match="reading recordings needs pyarrow"):
        recording(tmp_path / "log")
    assert opened(archive).rows == 10


def test_large_rows_of_an_archive_are_read_in_smaller_blocks(tmp_path: Path) -> None:
    """A block of one array has at most 64 MiB, and at least one row."""
    path, size = tmp_path / "log.npz", 2**22 + 1
    context = numpy.zeros((5, size), numpy.uint8)
    context[:, -1] = numpy.arange(5)
    numpy.savez(path, context=context, action=numpy.arange(5), reward=numpy.zeros(5))
    file = files.open_file(path, "auto")
    kinds = {"context": "i", "action": "i"}
    blocks = list(file.blocks(kinds, 1))
    assert [(start, block["context"][:, -1].tolist()) for start, block in blocks] == [
        (1, [1, 2, 3, 4])
    ]
    assert [block["action"].tolist() for _, block in blocks] == [[1, 2, 3, 4]]


# -- recordings ------------------------------------------------------------------------------------


def recording(folder: Path) -> Recording:
    made = Recording(folder, spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2))
    made.start()
    return made


def add(made: Recording, *rewards: float) -> None:
    n = len(rewards)
    made.add(
        numpy.zeros((n, 1), numpy.float32),
        {"action": numpy.zeros(n, int), "reward": numpy.array(rewards, float)},
    )


def rewards_of(folder: Path) -> list[float]:
    rewards: list[float] = opened(folder).whole()["reward"].tolist()
    return rewards


def test_recorded_rows_become_files_named_after_their_first_row(tmp_path: Path) -> None:
    made = recording(tmp_path / "a" / "b")
    assert made.rows == 0
    made.flush()
    add(made)
    made.flush()
    assert list(made.folder.iterdir()) == []
    add(made, 1.0, 2.0)
    add(made, 3.0)
    assert made.rows == 3
    made.flush()
    add(made, 4.0)
    made.flush()
    made.flush()
    assert sorted(file.name for file in made.folder.iterdir()) == [
        "part-000000000000.parquet",
        "part-000000000003.parquet",
    ]
    assert rewards_of(made.folder) == [1.0, 2.0, 3.0, 4.0]


def test_rows_are_copied_and_written_before_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlplug.logs.recording._BYTES", 120)
    made = recording(tmp_path)
    seen = numpy.zeros((2, 1), numpy.float32)
    # Each time 8 bytes of observations, 16 of actions and 16 of rewards.
    for index, files_there in enumerate((0, 0, 0, 1, 1, 1, 1, 2)):
        seen[:] = index / 8
        made.add(seen, {"action": numpy.zeros(2, int), "reward": numpy.full(2, index / 8)})
        assert len(list(tmp_path.iterdir())) == files_there
    rows = opened(tmp_path).whole()
    assert len(rows) == 16
    assert rows["context"][:, 0].tolist() == rows["reward"].tolist()


def test_a_file_of_a_recording_has_64_mebibytes(tmp_path: Path) -> None:
    made = Recording(tmp_path, spaces.Box(-1.0, 1.0, (2**19,)), spaces.Discrete(2))
    made.start()
    seen = numpy.zeros((8, 2**19))
    rest = {"action": numpy.zeros(8, int), "reward": numpy.zeros(8)}
    made.add(seen, rest)
    assert not list(tmp_path.iterdir())
    made.add(seen, rest)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("rows", "kept"), [(0, 0), (2, 2), (3, 3), (5, 5)])
def test_a_recording_goes_on_after_so_many_rows(tmp_path: Path, rows: int, kept: int) -> None:
    made = recording(tmp_path)
    for first, count in ((0, 2), (2, 1), (3, 2), (5, 1)):
        add(made, *[float(first + one) for one in range(count)])
        made.flush()
    add(made, 99.0)
    again = recording_to_resume(tmp_path)
    for one in (made, again):
        one.resume(rows)
        # The other files are gone before the next one is written.
        assert (rewards_of(tmp_path) if rows else []) == [*map(float, range(kept))]
        assert rows or list(tmp_path.iterdir()) == []
        add(one, -1.0)
        assert one.rows == rows + 1
        one.flush()
        assert rewards_of(tmp_path) == [*map(float, range(kept)), -1.0]


def test_a_recording_goes_on_where_its_folder_is_gone(tmp_path: Path) -> None:
    made = recording_to_resume(tmp_path / "a" / "b")
    made.resume(0)
    add(made, 1.0)
    made.flush()
    assert rewards_of(made.folder) == [1.0]


def recording_to_resume(folder: Path) -> Recording:
    return Recording(folder, spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2))


def test_a_recording_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    made = recording(tmp_path / "log")
    add(made, 1.0)
    made.flush()
    with pytest.raises(RequestError) as raised:
        recording(tmp_path / "log")
    assert raised.value.message == (
        f"folder '{tmp_path / 'log'}' has a recording already (part-000000000000.parquet)."
    )
    (tmp_path / "file").touch()
    with pytest.raises(RequestError) as raised:
        recording(tmp_path / "file")
    assert raised.value.message == (
        f"the recording cannot be written to '{tmp_path / 'file'}': File exists."
    )
    odd = spaces.Dict({"context": spaces.Discrete(2), "speed": spaces.Discrete(2)})
    with pytest.raises(UnsupportedSpaceError) as unsupported:
        Recording(tmp_path / "odd", odd, spaces.Discrete(2))
    assert unsupported.value.message == (
        "Discrete with 2 values of the key 'speed' cannot be recorded."
    )
    with pytest.raises(UnsupportedSpaceError, match="cannot be recorded"):
        Recording(tmp_path / "odd", spaces.Discrete(2), spaces.Text(3))
    assert not (tmp_path / "odd").exists()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-2),
        spaces.MultiBinary(3),
        spaces.MultiBinary([2, 3]),
        spaces.Box(-numpy.inf, 2.5, (2, 3), numpy.float64),
        spaces.Box(numpy.array([0.0, -1.0]), numpy.array([1.0, 5.0]), dtype=numpy.float64),
        spaces.Box(0, 255, (2, 2), numpy.uint8),
        spaces.Box(0.0, 1.0, (0,), numpy.float64),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0.0, 1.0, (1,))}),
    ],
)
def test_spaces_are_themselves_again_after_json(space: Any) -> None:
    actions = spaces.Discrete(2)
    assert spaces_from_metadata(spaces_as_metadata(space, actions)) == (space, actions)
    assert spaces_from_metadata({}) is None


def test_bounds_that_are_the_same_everywhere_are_one_number() -> None:
    image = spaces.Box(0, 255, (84, 84, 4), numpy.uint8)
    (content,) = spaces_as_metadata(image, spaces.Discrete(2)).values()
    assert len(content) < 500
