"""Tables from files: what they hold, and what is said about those that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import pytest

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


def refusal(source: str, label: str = "kind") -> str:
    with pytest.raises(RequestError) as caught:
        load_table(source, label)
    return str(caught.value)


def test_a_csv_file_gives_numbers_and_classes_in_order(tmp_path: Path) -> None:
    table = load_table(written(tmp_path, CSV), "kind")
    assert table.features.tolist() == [[1.5, 2.0], [-20.0, 4.0], [0.0, 6.0]]
    assert table.columns == ("height", "width, cm")
    assert table.classes == ("cat", "dog")
    assert table.labels.tolist() == [0, 1, 0]


def test_labels_that_are_numbers_are_ordered_by_value(tmp_path: Path) -> None:
    table = load_table(written(tmp_path, "x,label\n1,10\n2,9\n3,10.0\n"))
    assert table.classes == ("9", "10")
    assert table.labels.tolist() == [1, 0, 1]


def test_a_byte_order_mark_is_not_part_of_a_name(tmp_path: Path) -> None:
    table = load_table(written(tmp_path, "\ufeffx,label\n1,a\n2,b\n"))
    assert table.columns == ("x",)


def test_an_npz_file_gives_x_and_y(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    numpy.savez(path, x=numpy.array([[1, 2], [3, 4]]), y=numpy.array([7, 5]))
    table = load_table(str(path))
    assert table.features.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert table.classes == ("5", "7")
    assert table.labels.tolist() == [1, 0]


def test_a_parquet_file_gives_what_the_csv_file_gives(tmp_path: Path) -> None:
    table = load_table(
        parquet(tmp_path, {"x": [1, 2], "z": [0.5, 1.5], "kind": ["b", "a"]}), "kind"
    )
    assert table.features.tolist() == [[1.0, 0.5], [2.0, 1.5]]
    assert table.classes == ("a", "b")
    assert table.labels.tolist() == [1, 0]


def parquet(folder: Path, columns: dict[str, list[object]]) -> str:
    import pyarrow
    from pyarrow.parquet import write_table

    path = folder / "pets.parquet"
    write_table(pyarrow.table(columns), path)
    return str(path)


def test_a_missing_label_column_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, CSV), "kinds")
    assert "pets.csv: there is no column 'kinds'" in text
    assert "height, kind, width, cm" in text
    assert "did you mean 'kind'?" in text
    text = refusal(parquet(tmp_path, {"x": [1], "kind": ["a"]}), "kinds")
    assert "the columns are: x, kind." in text


def test_text_in_a_feature_is_named_with_column_and_line(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, "x,kind\n1,a\n\nred,b\n"))
    assert "pets.csv, line 4: column 'x' holds 'red', a feature must be a number." in text
    text = refusal(parquet(tmp_path, {"x": ["red"], "kind": ["a"]}))
    assert "column 'x' holds string" in text
    assert "['red']" in text


def test_a_line_with_too_few_cells_is_named(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, "kind,x,z\na,1,2\nb,1\n"))
    assert "pets.csv, line 3: the header names 3 columns, this line has 2." in text


def test_a_line_that_lacks_only_its_label_is_named(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, "x,z,kind\n1,2,a\n3,4\n"))
    assert "pets.csv, line 3: the header names 3 columns, this line has 2." in text


def test_spaces_around_a_label_make_no_class_of_its_own(tmp_path: Path) -> None:
    table = load_table(written(tmp_path, "x, kind\n1, a\n2,a \n3,b\n"), "kind")
    assert table.classes == ("a", "b")
    assert table.labels.tolist() == [0, 0, 1]


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path, CSV)
    assert load_table("~/pets.csv", "kind").classes == ("cat", "dog")


def test_a_table_of_one_class_is_refused(tmp_path: Path) -> None:
    assert "all rows are of one class, 'a'" in refusal(written(tmp_path, "x,kind\n1,a\n2,a\n"))


def test_a_missing_file_is_named_with_its_place(tmp_path: Path) -> None:
    text = refusal(str(tmp_path / "none.csv"))
    assert "there is no such file" in text
    assert str(tmp_path.absolute() / "none.csv") in text


def test_an_unknown_kind_of_file_is_refused() -> None:
    text = refusal("table.xlsx")
    assert "neither a file (.csv, .parquet, .npz)" in text
    assert "breast_cancer, digits, iris, wine" in text


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    assert "no line below the header" in refusal(written(tmp_path, "x,kind\n\n"))
    assert "no line below the header" in refusal(written(tmp_path, ""))
    assert "its features have shape (2, 0)" in refusal(written(tmp_path, "kind\na\nb\n"))
    path = tmp_path / "none.npz"
    numpy.savez(path, x=numpy.empty((0, 3)), y=numpy.empty(0))
    assert "its features have shape (0, 3)" in refusal(str(path))


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_named_with_row_and_column(tmp_path: Path, bad: str) -> None:
    text = refusal(written(tmp_path, f"x,z,kind\n1,2,a\n1,{bad},b\n"))
    assert f"{bad} in column 'z', row 1 (counted from 0)" in text


def test_a_row_without_a_label_is_named(tmp_path: Path) -> None:
    assert "row 1 (counted from 0) has no label" in refusal(written(tmp_path, "x,kind\n1,a\n2,\n"))
    source = parquet(tmp_path, {"x": [1, 2, 3], "kind": ["a", "b", None]})
    assert "row 2 (counted from 0) has no label" in refusal(source)


def test_numbers_that_are_not_whole_are_no_classes(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, "x,kind\n1,2\n2,3.7\n"))
    assert "label 3.7 in row 1 (counted from 0) is no class" in text


def test_an_archive_without_y_is_refused_with_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    numpy.savez(path, x=numpy.eye(2), target=numpy.arange(2))
    assert "there is no array 'y'; there are: target, x." in refusal(str(path))


@pytest.mark.parametrize("name", ["rows.npz", "rows.parquet"])
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path, name: str) -> None:
    assert f"{name}: cannot be read" in refusal(written(tmp_path, "not that", name))


def test_a_csv_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pets.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert "pets.csv: cannot be read as UTF-8 text" in refusal(str(path))


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = parquet(tmp_path, {"x": [1, 2], "kind": ["a", "b"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert 'try: pip install "rlplug[parquet]"' in refusal(source)


def test_labels_must_be_as_many_as_rows() -> None:
    with pytest.raises(RequestError, match=r"label must have shape \(2,\).* found \(3,\)"):
        Table.of(numpy.eye(2), [0, 1, 2])
    with pytest.raises(RequestError, match=r"features must have shape \(rows, columns\)"):
        Table.of([1.0, 2.0], [0, 1])


def test_standardised_columns_have_mean_0_and_deviation_1() -> None:
    table = Table.of([[1.0, 7.0], [3.0, 7.0]], [0, 1]).preprocessed("standard")
    assert table.features.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_unit_rows_are_standardised_get_a_one_and_have_norm_1() -> None:
    """The rows (−1, 0) and (1, 0) get a 1: (∓1, 0, 1), which has norm √2."""
    table = Table.of([[1.0, 7.0], [3.0, 7.0]], [0, 1], columns=("a", "b")).preprocessed("unit")
    half = 0.5**0.5
    assert table.features == pytest.approx(numpy.array([[-half, 0, half], [half, 0, half]]))
    assert table.columns == ("a", "b", "bias")
