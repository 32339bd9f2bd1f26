"""Logs: files of logged rows, the columns they map to, and what is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from gymnasium import spaces

from rlplug.errors import ConfigError, RequestError
from tests.log_files import ROWS, changed, columns, opened, write


@pytest.mark.parametrize("suffix", ["parquet", "csv", "npz"])
def test_formats_hold_the_same_rows(tmp_path: Path, suffix: str) -> None:
    log = opened(write(tmp_path / f"log.{suffix}", columns()))
    assert (log.rows, log.num_arms, log.is_bandit) == (10, 3, True)
    assert log.action_space == spaces.Discrete(3)
    assert log.observation_space == spaces.Box(-numpy.inf, numpy.inf, (2,), numpy.float64)
    rows = log.whole()
    assert rows["context"][3].tolist() == [3.0, 3.5]
    assert rows["action"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert rows["reward"].tolist() == [10.0 * one for one in range(10)]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "npz"])
@pytest.mark.parametrize("first", [0, 1, 4, 7, 9])
def test_reading_from_any_row_gives_the_rows_that_follow(
    tmp_path: Path, suffix: str, first: int
) -> None:
    options = {"row_group_size": 3} if suffix == "parquet" else {}
    one = write(tmp_path / f"a.{suffix}", columns(), **options)
    two = write(tmp_path / f"b.{suffix}", columns(), **options)
    log = opened(one, two)
    batches = list(log.read(first, 4))
    assert [len(batch) for batch in batches[:-1]] == [4] * (len(batches) - 1)
    assert batches[0].first == first
    rewards = numpy.concatenate([batch["reward"] for batch in batches])
    assert rewards.tolist() == [10.0 * (one % 10) for one in range(first, 20)]


def test_columns_are_in_the_order_of_the_numbers_in_their_names(tmp_path: Path) -> None:
    table = columns(dim=12)
    shuffled = dict(sorted(table.items(), reverse=True))
    log = opened(write(tmp_path / "log.parquet", shuffled))
    assert log.whole()["context"][0].tolist() == [0.5 * one for one in range(12)]


def test_lists_are_matrices_and_arms_have_features(tmp_path: Path) -> None:
    contexts = [[1.0, 2.0], [3.0, 4.0]]
    arms = [[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]]
    table = {
        "context": contexts,
        "arms": arms,
        "action_mask": [[1, 1, 0], [1, 0, 1]],
        "action": [1, 2],
        "reward": [0.0, 1.0],
    }
    log = opened(write(tmp_path / "log.parquet", table))
    assert log.num_arms == 3
    assert isinstance(log.observation_space, spaces.Dict)
    rows = log.whole()
    assert rows["context"].tolist() == contexts
    assert rows["arms"].tolist() == arms
    assert rows["action_mask"].tolist() == table["action_mask"]
    assert sorted(rows.observations) == ["action_mask", "arms", "context"]


def test_features_of_arms_may_be_columns(tmp_path: Path) -> None:
    table: dict[str, Any] = {
        f"arms_{arm}_{one}": [10.0 * arm + one] for arm in (0, 1, 2) for one in (0, 1)
    }
    log = opened(write(tmp_path / "log.csv", {**table, "action": [2], "reward": [1.0]}))
    assert log.whole()["arms"].tolist() == [[[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]]


def test_float32_stays_float32(tmp_path: Path) -> None:
    table = {
        name: numpy.float32(one) if "context" in name else one for name, one in columns().items()
    }
    log = opened(write(tmp_path / "log.parquet", table))
    assert log.observation_space.dtype == numpy.float32
    assert log.whole()["context"].dtype == numpy.float32


def test_columns_of_other_names_are_mapped(tmp_path: Path) -> None:
    table = {"user_age": [1.0], "user_size": [2.0], "shown": [1], "clicked": [True]}
    path = write(tmp_path / "log.parquet", table)
    log = opened(path, context="user_*", action="shown", reward="clicked", num_arms=5)
    assert (log.num_arms, log.observation_space.shape) == (5, (2,))
    assert log.whole()["reward"].tolist() == [1.0]


def test_all_missing_columns_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", columns())
    with pytest.raises(ConfigError) as raised:
        opened(path, action="actoin", reward="click", weight="w")
    told = str(raised.value)
    assert "3 problems" in told
    assert "no column 'actoin' in log.csv, did you mean 'action'?" in told
    assert "columns of log.csv: context_0, context_1, action, reward, propensity" in told


@pytest.mark.parametrize(
    ("row", "values", "told"),
    [
        (4, {"propensity": 0.0}, "'propensity' is 0, no probability above 0 and at most 1"),
        (4, {"propensity": 1.5}, "'propensity' is 1.5, no probability above 0 and at most 1"),
        (9, {"propensity": numpy.nan}, "'propensity' is missing or NaN"),
        (2, {"action": 3}, "'action' is 3, the arms are 0 to 2"),
        (2, {"action": -1}, "'action' is -1, the arms are 0 to 2"),
        (7, {"reward": numpy.nan}, "'reward' is missing or NaN"),
        (7, {"context_1": numpy.inf}, "'context_1' is infinite"),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "csv", "npz"])
def test_the_first_bad_row_is_named(
    tmp_path: Path, suffix: str, row: int, values: dict[str, Any], told: str
) -> None:
    path = write(tmp_path / f"log.{suffix}", changed(row, **values))
    with pytest.raises(RequestError) as raised:
        for _ in opened(path, num_arms=3).read(0, 4):
            pass
    where = f"line {row + 2}" if suffix == "csv" else f"row {row}"
    assert f"log.{suffix}, {where}: column {told}" in str(raised.value)


def test_a_missing_propensity_or_action_is_named(tmp_path: Path) -> None:
    table = {name: list(column) for name, column in columns().items()}
    for name in ("propensity", "action"):
        gap = {**table, name: [*table[name][:3], None, *table[name][4:]]}
        path = write(tmp_path / f"{name}.parquet", gap)
        with pytest.raises(RequestError, match=f"row 3: column '{name}' is missing"):
            opened(path, num_arms=3).whole()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "npz"])
def test_whole_numbers_that_are_written_as_floats_are_arms(tmp_path: Path, suffix: str) -> None:
    # pandas makes a column of floats of whole numbers where one was missing.
    table = {**columns(), "action": columns()["action"].astype(float)}
    log = opened(write(tmp_path / f"log.{suffix}", table))
    assert log.num_arms == 3
    assert log.whole()["action"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    for value, told in ((1.5, "is 1.5, no whole number"), (numpy.nan, "is missing or NaN")):
        table["action"][4] = value
        with pytest.raises(RequestError, match=f"column 'action' {told}"):
            opened(write(tmp_path / f"log.{suffix}", table))


def test_arms_may_be_unsigned_numbers(tmp_path: Path) -> None:
    table = {**columns(), "action": columns()["action"].astype(numpy.uint8)}
    for suffix in ("parquet", "npz"):
        assert opened(write(tmp_path / f"log.{suffix}", table)).num_arms == 3


def test_a_whole_number_written_as_a_float_far_down_a_csv_file_is_named(tmp_path: Path) -> None:
    table = {name: list(column) for name, column in columns(rows=60_000).items()}
    table["action"][59_000] = "2.5"
    path = write(tmp_path / "log.csv", table)
    with pytest.raises(RequestError, match=r"line 59,002: column 'action' holds '2.5', expected"):
        opened(path)


def test_identifiers_are_not_taken_for_arms(tmp_path: Path) -> None:
    path = write(tmp_path / "log.parquet", changed(3, action=10**9))
    with pytest.raises(RequestError, match="'action' holds 1,000,000,000, the log has 10 rows"):
        opened(path)


def test_files_that_end_after_their_header_have_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {name: one[:0] for name, one in columns().items()})
    with pytest.raises(RequestError, match=r"the log has no rows: a.csv of data.files is empty"):
        opened(tmp_path / "a.csv")
    write(tmp_path / "b.csv", columns())
    assert opened(tmp_path).rows == ROWS


def test_propensities_that_do_not_sum_to_one_are_named(tmp_path: Path) -> None:
    table: dict[str, Any] = {f"propensities_{arm}": [1 / 3] * ROWS for arm in range(3)}
    table["propensities_1"][6] = 0.5
    table = {**columns(), **table}
    with pytest.raises(RequestError) as raised:
        opened(write(tmp_path / "log.parquet", table)).whole()
    assert "row 6: column 'propensities_0' and those of the other arms sum to 1.16667" in str(
        raised.value
    )


def test_rows_without_propensities_are_taken_for_uniform_among_the_arms_that_were_there(
    tmp_path: Path,
) -> None:
    table = {name: one for name, one in columns(3).items() if name != "propensity"}

    def uniform(**more: Any) -> list[float]:
        log = opened(write(tmp_path / "log.parquet", {**table, **more}), num_arms=3)
        found: list[float] = log.whole().propensity_or_uniform(log.num_arms).tolist()
        return found

    assert uniform() == [1 / 3] * 3
    assert uniform(action_mask=[[1, 0, 0], [1, 1, 1], [0, 1, 1]]) == [1, 1 / 3, 0.5]
    assert uniform(propensity=[0.25, 0.5, 1.0]) == [0.25, 0.5, 1.0]
    assert uniform(propensities=[[0.5, 0.5, 0], [0.2, 0.7, 0.1], [0, 0, 1]]) == [0.5, 0.7, 1]
    logs = numpy.log([0.5, 0.25, 1])
    assert uniform(action_log_prob=logs) == pytest.approx([0.5, 0.25, 1])


def test_the_arm_that_was_chosen_must_have_been_present(tmp_path: Path) -> None:
    table = {**columns(), "action_mask": [[1, 1, 1]] * 4 + [[1, 0, 1]] * 6}
    with pytest.raises(RequestError, match="row 4: column 'action' is 1, an arm that is absent"):
        opened(write(tmp_path / "log.parquet", table)).whole()


@pytest.mark.parametrize("suffix", ["parquet", "npz"])
def test_a_file_that_ends_in_the_middle_is_named(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"log.{suffix}", columns(rows=1000))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(RequestError, match=f"log.{suffix} cannot be read as {suffix}"):
        opened(path)


@pytest.mark.parametrize("rows", [ROWS, 9000])
def test_lists_of_other_lengths_and_missing_ones_are_named(tmp_path: Path, rows: int) -> None:
    def told(lists: list[Any]) -> str:
        table = columns(rows, dim=0)
        table["context"] = pyarrow.array(lists)
        path = write(tmp_path / "log.parquet", table)
        with pytest.raises(RequestError) as raised:
            opened(path, num_arms=3).whole()
        return str(raised.value)

    place = f"row {rows - 9:,}: column 'context'"
    whole, rest = [[0.0, 1.0]] * (rows - 9), [[2.0, 3.0]] * 8
    said = told([*whole, [3.0], *rest])
    assert f"log.parquet, {place} has 1 values, other rows have 2" in said
    said = told([*whole, None, *rest])
    assert f"log.parquet, {place} is missing" in said
    said = told([*whole, [0.0, None], *rest])
    assert "column 'context" in said
    assert "is missing or NaN" in said


def test_a_csv_file_that_ends_in_the_middle_of_a_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", columns())
    path.write_text(path.read_text()[:-12].rpartition(",")[0])
    with pytest.raises(RequestError) as raised:
        opened(path, num_arms=3).whole()
    assert "log.csv, line 11: column 'propensity' is not there: the line has 4 values" in str(
        raised.value
    )


def test_text_among_the_numbers_of_a_csv_column_is_named(tmp_path: Path) -> None:
    # Far beyond the rows from which types are guessed.
    table = {name: list(column) for name, column in columns(rows=60_000).items()}
    table["reward"][59_000] = "click"
    path = write(tmp_path / "log.csv", table)
    with pytest.raises(RequestError) as raised:
        for _ in opened(path, num_arms=3).read(0, 8192):
            pass
    assert "log.csv, line 59,002: column 'reward' holds 'click', expected a number" in str(
        raised.value
    )


def test_text_in_the_first_rows_of_a_csv_column_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", changed(3, reward="click"))
    with pytest.raises(ConfigError, match=r"holds string \(line 5 holds 'click'\), not numbers"):
        opened(path)


def test_columns_that_differ_between_files_are_named(tmp_path: Path) -> None:
    one = write(tmp_path / "a.parquet", columns())
    two = write(tmp_path / "b.parquet", columns(dim=3))
    with pytest.raises(
        RequestError, match=r"data.context is context_0 \(numbers\), .* in b.parquet, .* in a"
    ):
        opened(tmp_path)
    without = {name: column for name, column in columns().items() if name != "propensity"}
    write(two, without)
    with pytest.raises(
        RequestError, match=r"data.propensity is missing in b.parquet, propensity \(n"
    ):
        opened(one, two)
    write(two, {**columns(), "reward": ["no"] * ROWS})
    with pytest.raises(ConfigError, match=r"'reward' of b.parquet holds string, not numbers"):
        opened(one, two)


def test_an_empty_log_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.parquet", {name: one[:0] for name, one in columns().items()})
    with pytest.raises(RequestError, match="the log has no rows"):
        opened(path)
    (tmp_path / "none.csv").touch()
    with pytest.raises(RequestError, match=r"none.csv is empty: it has 0 bytes"):
        opened(tmp_path / "none.csv")


def test_a_file_that_is_not_there_is_told_with_the_one_that_is(tmp_path: Path) -> None:
    write(tmp_path / "clicks.parquet", columns())
    with pytest.raises(RequestError, match=r"no file .*Did you mean 'clicks.parquet'"):
        opened(tmp_path / "click.parquet")


@pytest.mark.parametrize("save", [numpy.savez, numpy.savez_compressed])
def test_archives_are_read_a_block_at_a_time(tmp_path: Path, save: Any) -> None:
    """120 MB of contexts, of which no more than one block and one batch are in memory."""
    rows, path = 150_000, tmp_path / "log.npz"
    context = numpy.zeros((rows, 100))
    context[:, 0] = numpy.arange(rows)
    save(path, context=context, action=numpy.arange(rows) % 3, reward=context[:, 0] % 7)
    del context
    tracemalloc.start()
    log = opened(path, context="context")
    total, seen = 0, 0
    for part in log.read(40_000, 5000):
        assert part["context"][0, 0] == part.first
        assert part["reward"][-1] == (part.first + len(part) - 1) % 7
        seen += len(part)
        total += int(part["context"][:, 0].sum())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == rows - 40_000
    assert total == sum(range(40_000, rows))
    assert peak < 100e6


def test_arrays_in_fortran_order_are_read_from_any_row(tmp_path: Path) -> None:
    context = numpy.asfortranarray(numpy.arange(20.0).reshape(10, 2))
    numpy.savez(tmp_path / "log.npz", context=context, action=[0, 1] * 5, reward=[0.5] * 10)
    log = opened(tmp_path / "log.npz")
    assert numpy.array_equal(log.whole()["context"], context)
    assert [part["context"][0, 0] for part in log.read(4, 3)] == [8.0, 14.0]


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "log.npz", columns(2000))
    content = bytearray(path.read_bytes())
    content[5000] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(RequestError, match=r"log.npz cannot be read as npz: Bad CRC-32"):
        opened(path).whole()
    numpy.savez(tmp_path / "objects.npz", action=numpy.array([{}, {}]), reward=[0.0, 1.0])
    with pytest.raises(RequestError, match="an array holds Python objects"):
        opened(tmp_path / "objects.npz")


def test_the_open_bandit_dataset_is_read_with_indicators_of_user_features(tmp_path: Path) -> None:
    folder = tmp_path / "random" / "all"
    folder.mkdir(parents=True)
    names = ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1"
    lines = [
        "0,2019-11-24 00:00:01,2,3,0,0.25,b,x",
        "1,2019-11-24 00:00:02,0,1,1,0.25,a,y",
        "2,2019-11-24 00:00:03,3,2,0,0.5,c,x",
    ]
    (folder / "all.csv").write_text("\n".join([names, *lines]) + "\n")
    log = opened(folder, format="obd")
    assert (log.rows, log.num_arms) == (3, 4)
    rows = log.whole()
    # Of a, b, c and of x, y the first has no column.
    assert rows["context"].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert rows["position"].tolist() == [2, 0, 1]
    assert rows["propensity"].tolist() == [0.25, 0.25, 0.5]
    assert [batch["reward"].tolist() for batch in log.read(1, 1)] == [[1.0], [0.0]]
    with pytest.raises(RequestError, match="is no folder of the Open Bandit Dataset"):
        opened(tmp_path / "random", format="obd")


@pytest.fixture
def shipped() -> Any:
    """The data set that Open Bandit Pipeline ships."""
    obp = pytest.importorskip("obp", reason="the test extra installs it")
    return Path(obp.__file__).parent / "dataset" / "obd"


def test_items_of_the_open_bandit_dataset_are_arms(shipped: Path) -> None:
    """Compared with pandas on the files, as Open Bandit Pipeline reads them."""
    import pandas

    folder = shipped / "bts" / "men"
    table = pandas.read_csv(folder / "men.csv", index_col=0)
    items = pandas.read_csv(folder / "item_context.csv", index_col=0).set_index("item_id")
    features = pandas.get_dummies(items, drop_first=True).to_numpy(float)
    users = table.filter(like="user_feature")
    log = opened(folder, format="obd", arms="items")
    assert (log.rows, log.num_arms) == (len(table), len(items))
    rows = next(log.read(0, 500))
    assert numpy.array_equal(rows["action"], table["item_id"][:500])
    assert numpy.array_equal(rows["reward"], table["click"][:500])
    assert numpy.array_equal(rows["propensity"], table["propensity_score"][:500])
    assert numpy.array_equal(rows["position"], table["position"][:500] - 1)
    indicators = pandas.get_dummies(users, drop_first=True).to_numpy(float)
    assert numpy.array_equal(rows["context"], indicators[:500])
    affinities = table.filter(like="affinity").to_numpy(float)[:500]
    # Columns of numbers come first in pandas, as they do in the file.
    assert rows["arms"].shape == (500, len(items), features.shape[1] + 1)
    assert numpy.array_equal(rows["arms"][7, :, :-1], features)
    assert numpy.array_equal(rows["arms"][:, :, -1], affinities)
    alone = next(opened(folder, format="obd", arms="affinities").read(0, 500))
    assert numpy.array_equal(alone["arms"][:, :, 0], affinities)
    assert "arms" not in opened(folder, format="obd").roles
