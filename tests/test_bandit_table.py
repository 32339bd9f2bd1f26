"""Tables: what they hold, and what is said about those that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from pyarrow.parquet import write_table

from rlplug.bandits import Table, load_table
from rlplug.errors import RequestError

CSV = """height,kind,"width, cm"
1.5,cat,2
-2e1,dog,"4"

0,cat,6
"""


def written(folder: Path, text: str, name: str = "pets.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def parquet(folder: Path, columns: dict[str, list[Any]]) -> str:
    write_table(pyarrow.table(columns), folder / "pets.parquet")
    return str(folder / "pets.parquet")


def archive(folder: Path, **arrays: Any) -> str:
    numpy.savez(folder / "rows.npz", **arrays)
    return str(folder / "rows.npz")


def refusal(source: str, label: str = "kind") -> str:
    with pytest.raises(RequestError) as caught:
        load_table(source, label)
    return str(caught.value)


def test_a_csv_file_gives_numbers_and_classes_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in (written(tmp_path, CSV), "~/pets.csv"):
        table = load_table(source, "kind")
        assert table.features.tolist() == [[1.5, 2.0], [-20.0, 4.0], [0.0, 6.0]]
        assert table.columns == ("height", "width, cm")
        assert (table.classes, table.labels.tolist()) == (("cat", "dog"), [0, 1, 0])


def test_other_files_give_what_a_csv_file_gives(tmp_path: Path) -> None:
    table = load_table(archive(tmp_path, x=numpy.array([[1, 2], [3, 4]]), y=numpy.array([7, 5])))
    assert table.features.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert (table.classes, table.labels.tolist()) == (("5", "7"), [1, 0])
    source = parquet(tmp_path, {"x": [1, 2], "z": [0.5, 1.5], "kind": ["b", "a"]})
    table = load_table(source, "kind")
    assert table.features.tolist() == [[1.0, 0.5], [2.0, 1.5]]
    assert (table.classes, table.labels.tolist()) == (("a", "b"), [1, 0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CSV.replace("kind", "kinds"), "did you mean 'kinds'?"),
        (
            CSV.replace("kind", "kinds"),
            "no column 'kind'; there are: height, kinds, width, cm",
        ),
        ("x,kind\n1,a\n\nred,b\n", "column 'x' holds string (line 4 holds 'red'), a feature must"),
        ("kind,x,z\na,1,2\nb,1\n", "line 3: column 'z' is not there: the line has 2 values"),
        ("x,z,kind\n1,2,a\n3,4\n", "line 3: column 'kind' is not there: the line has 2 values"),
        ("x,kind\n1,a\n2,a\n", "all rows are of one class, 'a'"),
        ("x,kind\n\n", "the table is empty"),
        ("kind\na\nb\n", "the table is empty"),
        ("", "is empty: it has 0 bytes"),
        ("x,z,kind\n1,2,a\n1,nan,b\n", "nan in column 'z', row 1 (counted from 0)"),
        ("x,z,kind\n1,2,a\n1,inf,b\n", "inf in column 'z', row 1 (counted from 0)"),
        ("x,kind\n1,a\n2,\n", "row 1 (counted from 0) has no label"),
        ("x,kind\n1,2\n2,3.7\n", "label 3.7 in row 1 (counted from 0) is no class"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    said = refusal(written(tmp_path, text))
    assert said.startswith("pets.csv")
    assert told in said


def test_what_is_wrong_with_other_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "column 'x' holds string" in refusal(parquet(tmp_path, {"x": ["red"], "kind": ["a"]}))
    said = refusal(parquet(tmp_path, {"x": [1, 2, 3], "kind": ["a", "b", None]}))
    assert "row 2: column 'kind' is missing" in said
    source = archive(tmp_path, x=numpy.eye(2), target=numpy.arange(2))
    assert "there is no column 'y'; there are: x, target." in refusal(source)
    assert "is empty" in refusal(archive(tmp_path, x=numpy.empty((0, 3)), y=numpy.empty(0)))
    for name in ("rows.npz", "rows.parquet"):
        assert f"{name} cannot be read" in refusal(written(tmp_path, "not that", name))
    (tmp_path / "pets.csv").write_bytes(b"\xff\xfe\x00\x01")
    assert "pets.csv cannot be read" in refusal(str(tmp_path / "pets.csv"))
    missing = tmp_path / "none.csv"
    assert f"there is no such file.\n  looked at: {missing}" in refusal(str(missing))
    said = refusal("table.xlsx")
    assert "neither a file (.parquet, .pq, .csv, .npz) nor one of breast_cancer, digits" in said
    assert "did you mean 'rings'" in refusal("ring")
    monkeypatch.setitem(sys.modules, "pyarrow.dataset", None)
    assert "try: pip install 'rlplug[parquet]'" in refusal(parquet(tmp_path, {"x": [1]}))


def test_arrays_must_fit_each_other() -> None:
    with pytest.raises(RequestError, match=r"label must have shape \(2,\).* found \(3,\)"):
        Table.of(numpy.eye(2), [0, 1, 2])
    for features in ([1.0, 2.0], numpy.empty((0, 3)), [["a"], ["b"]]):
        with pytest.raises(RequestError, match=r"features must be numbers of shape \(rows, colu"):
            Table.of(features, [0, 1])


def test_columns_are_standardized_and_unit_rows_get_a_one_and_have_norm_1() -> None:
    """The rows (−1, 0) and (1, 0) get a 1: (∓1, 0, 1), which has norm √2."""
    table = Table.of([[1.0, 7.0], [3.0, 7.0]], [0, 1], columns=("a", "b"))
    assert table.preprocessed("none") is table
    assert table.preprocessed("standard").features.tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    unit, half = table.preprocessed("unit"), 0.5**0.5
    assert unit.features == pytest.approx(numpy.array([[-half, 0, half], [half, 0, half]]))
    assert unit.columns == ("a", "b", "bias")
