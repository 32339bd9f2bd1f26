"""Files of logs: what is read of each format, what damaged ones are called, and recordings."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.errors import RequestError, UnsupportedSpaceError
from rlplug.logs.recording import Recording, spaces_as_metadata, spaces_from_metadata
from tests.log_files import ROWS, columns, opened, write


def said_of(*paths: Path, **options: Any) -> str:
    """What is said of a log that cannot be read to its end."""
    with pytest.raises(RequestError) as raised:
        list(opened(*paths, **{"num_arms": 3, **options}).read(0, 4))
    return str(raised.value)


# -- finding them ----------------------------------------------------------------------------------


def test_files_are_found_by_name_in_folders_and_by_pattern(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    names = ("b.csv", "a.PARQUET", "d.pq", "more/c.npz")
    b, a, d, c = (str(write(tmp_path / name, columns(rows=2))) for name in names)
    (tmp_path / "notes.txt").write_text("no rows")
    assert opened(tmp_path).paths == (a, b, d, c)
    assert opened(Path(c), tmp_path / "?.csv*", Path(c)).paths == (c, b, c)
    Path(b).rename(tmp_path / "clicks.txt")
    assert opened(tmp_path / "clicks.txt", format="csv").rows == 2


def test_names_without_files_are_refused_with_what_is_near(tmp_path: Path) -> None:
    clicks = tmp_path / "clicks.txt"
    clicks.write_text("no rows")
    said = said_of(tmp_path)
    assert f"folder '{tmp_path}' has no file that ends in .parquet, .pq, .csv, .npz." in said
    said = said_of(tmp_path / "click.txt")
    assert f"no file '{tmp_path / 'click.txt'}'. Did you mean 'clicks.txt'?" in said
    assert f"looked at: {tmp_path / 'click.txt'}" in said
    for name in ("none/x.csv", "*.csv"):
        assert f"there is no file '{tmp_path / name}'.\n" in said_of(tmp_path / name)
    assert "'clicks.txt' ends in none of .parquet, .pq, .csv, .npz." in said_of(clicks)


def test_without_pyarrow_what_needs_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, archive = (write(tmp_path / f"log.{end}", columns()) for end in ("parquet", "npz"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    said = said_of(path)
    assert "reading log.parquet needs pyarrow, which is not installed." in said
    assert "try: pip install 'rlplug[parquet]'" in said
    with pytest.raises(RequestError, match="reading recordings needs pyarrow"):
        recording(tmp_path / "log")
    assert opened(archive).rows == 10


# -- their rows ------------------------------------------------------------------------------------


def test_files_without_rows_count_for_nothing(tmp_path: Path) -> None:
    nothing = {name: values[:0] for name, values in columns().items()}
    for name in ("a.csv", "a.parquet", "a.npz"):
        assert f"the log has no rows: {name}." in said_of(write(tmp_path / name, nothing))
    write(tmp_path / "b.csv", columns())
    assert opened(tmp_path).rows == ROWS
    (tmp_path / "none.csv").touch()
    assert "none.csv is empty: it has 0 bytes" in said_of(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("context", [[1.0, 2.0], [3.0, 4.0], [5.0], [6.0]], "has 1 values, other rows have 2"),
        ("context", [[1.0], [3.0], [5.0, 6.0], [7.0]], "has 2 values, other rows have 1"),
        ("context", [[1.0], [3.0], None, [7.0, 8.0]], "is missing"),
        ("context", [[1.0], [3.0], [None], [7.0]], "(value 0) is missing or NaN"),
        ("action", [0, 1, None, 2], "is missing"),
        ("action_mask", [[1, 1, 1], [1, 1, 1], None, [1, 1, 1]], "is missing"),
        ("propensity", [0.5, 0.5, None, 0.5], "is missing or NaN"),
    ],
)  # fmt: skip
def test_the_first_row_with_other_values_is_named(
    tmp_path: Path, name: str, values: Any, told: str
) -> None:
    table = {"action": [0] * 4, "reward": [0.0] * 4, name: values}
    path = write(tmp_path / "log.parquet", table)
    assert f"log.parquet, row 2: column {name!r} {told}." in said_of(path)
    # The row before it is of another group.
    write(path, table, row_group_size=2 if "missing" in told else 4)
    assert f"log.parquet, row 2: column {name!r} {told}." in said_of(path)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("1,x,false", "line 60,002: column 'reward' holds 'x', expected a number"),
        ("1.5,0.5,true", "line 60,002: column 'action' holds '1.5', expected a whole number"),
        ("1,2.5,maybe", "line 60,002: column 'terminated' holds 'maybe', expected true or false"),
        ("1", "line 60,002: column 'reward' is not there: the line has 1 values, the header 3"),
        ("1,2.5,false,9",
         "line 60,002: column 'terminated' is not there: the line has 4 values, the header 3"),
    ],
)  # fmt: skip
def test_lines_of_a_csv_file_that_cannot_be_read_are_named(
    tmp_path: Path, wrong: str, told: str
) -> None:
    """Far beyond the lines from which types are guessed; the header is line 1."""
    lines = ["action,reward,terminated", *["0,1.50000000000,true"] * 60_000, wrong]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    assert f"log.csv, {told}." in said_of(tmp_path / "log.csv")


# -- damaged ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_files_that_end_in_the_middle_or_are_something_else_are_named(
    tmp_path: Path, suffix: str
) -> None:
    path = write(tmp_path / f"log.{suffix}", columns(rows=1000))
    for content in (path.read_bytes()[:-200], b"action,reward\n0,1\n"):
        path.write_bytes(content)
        said = said_of(path)
        assert f"log.{suffix} cannot be read as {suffix}: " in said
        if suffix == "parquet":
            assert "it ends in the middle, or is something else (" in said
            assert f"looked at: {path}" in said


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "log.npz", columns(2000))
    content = path.read_bytes()
    path.write_bytes(content[:5000] + bytes([content[5000] ^ 255]) + content[5001:])
    assert "log.npz cannot be read as npz: Bad CRC-32" in said_of(path)
    path.write_bytes(b"no archive")
    assert "log.npz cannot be read as npz: File is not a zip" in said_of(path)
    given: dict[str, Any] = {"action": numpy.zeros(12, int), "reward": numpy.zeros(13)}
    numpy.savez(path, **given)
    assert "its arrays have different numbers of rows: action 12, reward 13." in said_of(path)
    numpy.savez(path, **{**given, "reward": numpy.array([{}] * 12)})
    assert "log.npz cannot be read as npz: Object arrays" in said_of(path)
    # An array without rows is no column.
    numpy.savez(path, **{**given, "reward": numpy.zeros(12), "note": 3})
    assert opened(path).rows == 12
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name, member in (("reward.npy", members["reward.npy"][:-8]), ("a.npy", b"\x93NUMPY\x09\0")):
        with zipfile.ZipFile(path, "w") as archive:
            for other, content in {**members, name: member}.items():
                archive.writestr(other, content)
        assert "log.npz cannot be read as npz: " in said_of(path)


# -- recordings ------------------------------------------------------------------------------------


def recording(folder: Path, *, starts: bool = True) -> Recording:
    made = Recording(folder, spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2))
    if starts:
        made.start()
    return made


def add(made: Recording, *rewards: float) -> None:
    n = len(rewards)
    chosen = {"action": numpy.zeros(n, int), "reward": numpy.array(rewards, float)}
    made.add(numpy.zeros((n, 1), numpy.float32), chosen)


def rewards_of(folder: Path) -> list[float]:
    rewards: list[float] = opened(folder).whole()["reward"].tolist()
    return rewards


def test_recorded_rows_become_files_named_after_their_first_row(tmp_path: Path) -> None:
    made = recording(tmp_path / "a" / "b")
    add(made)
    made.flush()
    assert list(made.folder.iterdir()) == []
    seen, rest = numpy.ones((2, 1), numpy.float32), {"action": numpy.zeros(2, int)}
    made.add(seen, {**rest, "reward": numpy.array([1.0, 2.0])})
    # Rows are copied.
    seen[:] = 0.5
    add(made, 3.0)
    assert made.rows == 3
    made.flush()
    add(made, 4.0)
    made.flush()
    made.flush()
    names = sorted(file.name for file in made.folder.iterdir())
    assert names == ["part-000000000000.parquet", "part-000000000003.parquet"]
    rows = opened(made.folder).whole()
    assert rows["reward"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert rows["context"].ravel().tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("rows", [0, 2, 3, 5])
def test_a_recording_goes_on_after_so_many_rows(tmp_path: Path, rows: int) -> None:
    made = recording(tmp_path / "log")
    for first, count in ((0, 2), (2, 1), (3, 2), (5, 1)):
        add(made, *[float(first + index) for index in range(count)])
        made.flush()
    add(made, 99.0)
    for resumed in (made, recording(tmp_path / "log", starts=False)):
        resumed.resume(rows)
        # The other files are gone before the next one is written.
        assert (rewards_of(made.folder) if rows else []) == [*map(float, range(rows))]
        add(resumed, -1.0)
        assert resumed.rows == rows + 1
        resumed.flush()
        assert rewards_of(made.folder) == [*map(float, range(rows)), -1.0]
    gone = recording(tmp_path / "gone" / "log", starts=False)
    gone.resume(0)
    add(gone, 1.0)
    gone.flush()
    assert rewards_of(gone.folder) == [1.0]


def test_a_recording_needs_a_folder_of_its_own_and_spaces_that_fit(tmp_path: Path) -> None:
    made = recording(tmp_path / "log")
    add(made, 1.0)
    made.flush()
    with pytest.raises(RequestError, match=r"has a recording already \(part-000000000000.parquet"):
        recording(tmp_path / "log")
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=f"cannot be written to '{tmp_path}/file': File exists"):
        recording(tmp_path / "file")
    discrete = spaces.Discrete(2)
    odd = spaces.Dict({"context": discrete, "speed": discrete})
    for observations, actions, told in (
        (odd, discrete, "of the key 'speed' cannot be recorded"),
        (discrete, spaces.Text(3), "of the key 'action' cannot be recorded"),
        (spaces.Tuple([discrete]), discrete, "of the key 'context' cannot be recorded"),
    ):
        with pytest.raises(UnsupportedSpaceError, match=told):
            Recording(tmp_path / "odd", observations, actions)
    assert not (tmp_path / "odd").exists()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-2),
        spaces.MultiBinary(3),
        spaces.MultiBinary([2, 3]),
        spaces.Box(-numpy.inf, 2.5, (2, 3), numpy.float64),
        spaces.Box(numpy.array([0.0, -1.0]), numpy.array([1.0, 5.0]), dtype=numpy.float64),
        spaces.Box(0, 255, (84, 84), numpy.uint8),
        spaces.Box(0.0, 1.0, (0,), numpy.float64),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0.0, 1.0, (1,))}),
    ],
)
def test_spaces_are_themselves_again_after_metadata(space: Any) -> None:
    metadata = spaces_as_metadata(space, spaces.Discrete(2))
    assert spaces_from_metadata(metadata) == (space, spaces.Discrete(2))
    # Bounds that are the same everywhere are one number.
    assert len(metadata[b"rlplug"]) < 500
    assert spaces_from_metadata({}) is None
