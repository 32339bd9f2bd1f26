"""The Open Bandit Dataset as a log: a small campaign, written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from rlplug.errors import RequestError
from rlplug.logs import Log
from rlplug.logs.obd import ObdFile
from rlplug.logs.roles import Column
from tests.log_files import opened

TABLE = """\
,timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,user-item_affinity_0,user-item_affinity_1,user-item_affinity_2
0,2019-11-24,2,3,0,0.25,b,x,0.0,1.0,2.0
1,2019-11-24,0,1,1,0.5,a,y,10.0,11.0,12.0
2,2019-11-24,1,3,0,0.75,c,x,20.0,21.0,22.0
3,2019-11-24,2,1,1,1.0,a,x,30.0,31.0,32.0
"""
ITEMS = """\
,item_id,item_feature_0,item_feature_1,item_feature_2
0,2,0.5,p,7
1,0,1.5,q,8
2,1,2.5,r,9
"""
"""By item: 1.5 q 8, 2.5 r 9 and 0.5 p 7."""


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    folder = tmp_path / "random" / "all"
    folder.mkdir(parents=True)
    (folder / "all.csv").write_text(TABLE)
    (folder / "item_context.csv").write_text(ITEMS)
    return folder


def obd(folder: Path, arms: str = "arms*") -> Log:
    return opened(folder, format="obd", arms=arms)


def test_columns_are_those_of_open_bandit_pipeline(campaign: Path) -> None:
    file = ObdFile(campaign / "all.csv")
    lists = Column(kind="f", type="list of double", is_list=True)
    assert file.columns == {
        "action": Column(kind="i", type="int64"),
        "reward": Column(kind="i", type="int64"),
        "propensity": Column(kind="f", type="double"),
        "position": Column(kind="i", type="int64"),
        **dict.fromkeys(("context", "item_features", "affinities", "items"), lists),
    }
    assert (file.count(), file.maximum("action"), file.metadata) == (4, 2, {})


@pytest.mark.parametrize("first", range(4))
def test_rows_are_read_from_any_row(campaign: Path, first: int) -> None:
    expected: dict[str, list[Any]] = {
        # Of a, b, c and of x, y the first has no column; of positions, 1 and 3 are 0 and 1.
        "context": [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]],
        "position": [1, 0, 1, 0],
        "action": [2, 0, 1, 2],
        "reward": [0.0, 1.0, 0.0, 1.0],
        "propensity": [0.25, 0.5, 0.75, 1.0],
    }
    log = obd(campaign)
    assert (log.rows, log.num_arms, log.is_bandit) == (4, 3, True)
    for size in (1, 2, 4):
        batches = list(log.read(first, size))
        assert [batch.first for batch in batches] == list(range(first, 4, size))
        for name, column in expected.items():
            read = numpy.concatenate([batch[name] for batch in batches])
            assert read.tolist() == column[first:], name


def test_items_have_their_features_and_the_affinity_of_the_user(campaign: Path) -> None:
    """Numbers as they are, of p, q and r all but the first."""
    own = [[1.5, 1.0, 0.0, 8.0], [2.5, 0.0, 1.0, 9.0], [0.5, 0.0, 0.0, 7.0]]
    affinities = [[10.0 * row + item for item in range(3)] for row in range(4)]
    log = obd(campaign, "item_features")
    assert log.num_arms == 3
    assert log.whole()["arms"].tolist() == [own] * 4
    log = obd(campaign, "affinities")
    assert log.whole()["arms"].tolist() == [[[one] for one in row] for row in affinities]
    both = [
        [[*features, one] for features, one in zip(own, row, strict=True)] for row in affinities
    ]
    assert obd(campaign, "items").whole()["arms"].tolist() == both
    assert next(obd(campaign, "items").read(2, 1))["arms"].tolist() == both[2:3]


def test_affinities_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ",".join(f"user-item_affinity_{item}" for item in (10, 9, *range(9)))
    values = ",".join(f"{item}.5" for item in (10, 9, *range(9)))
    (tmp_path / f"{tmp_path.name}.csv").write_text(
        f"item_id,click,propensity_score,{names}\n3,1,0.5,{values}\n"
    )
    log = obd(tmp_path, "affinities")
    assert log.whole()["arms"].tolist() == [[[item + 0.5] for item in range(11)]]
    # Neither positions nor features of users or items.
    assert set(log.roles.columns) == {"action", "reward", "propensity", "arms"}
    assert obd(tmp_path).observation_space.shape == (0,)


def test_rows_of_many_blocks_are_read_from_any_row(tmp_path: Path) -> None:
    table = tmp_path / f"{tmp_path.name}.csv"
    lines = [f"{row % 3},{int(row % 7 == 0)},0.5" for row in range(140_000)]
    header = "item_id,click,propensity_score"
    table.write_text("\n".join([header, *lines]) + "\n")
    log = obd(tmp_path)
    for first in (0, 32_768, 100_000, 139_998):
        batches = list(log.read(first, 50_000))
        assert [batch.first for batch in batches] == list(range(first, 140_000, 50_000))
        rows = numpy.arange(first, 140_000)
        for name, expected in (("action", rows % 3), ("reward", rows % 7 == 0)):
            read = numpy.concatenate([batch[name] for batch in batches])
            assert numpy.array_equal(read, expected), name
    lines[100_001] = "1,0,"
    table.write_text("\n".join([header, *lines]) + "\n")
    with pytest.raises(RequestError, match="line 100,003: column 'propensity' is missing"):
        list(obd(tmp_path).read(0, 50_000))
    # Far beyond the rows from which types are guessed.
    lines[100_001], lines[139_990] = "1,0,0.5", "1,0"
    table.write_text("\n".join([header, *lines]) + "\n")
    with pytest.raises(RequestError, match="line 139,992: column 'propensity_score' is not there"):
        ObdFile(table).count()
    with pytest.raises(RequestError, match="line 139,992: column 'propensity_score' is not there"):
        list(ObdFile(table).blocks({"reward": "f"}, 0))


def test_a_table_without_rows_has_no_largest_number(campaign: Path) -> None:
    table = campaign / "all.csv"
    table.write_text(TABLE.splitlines()[0] + "\n")
    assert (ObdFile(table).count(), ObdFile(table).maximum("action")) == (0, -1)
    with pytest.raises(RequestError, match="the log has no rows"):
        obd(campaign)


def test_what_is_no_campaign_is_refused(campaign: Path) -> None:
    with pytest.raises(RequestError) as raised:
        obd(campaign.parent)
    assert raised.value.message == (
        f"data.files: '{campaign.parent}' is no folder of the Open Bandit Dataset: it has no "
        "random.csv."
    )
    table = campaign / "all.csv"
    assert opened(table, format="obd").rows == 4
    table.write_text(TABLE.replace("click", "clicked").replace("propensity_score", "p"))
    with pytest.raises(RequestError) as raised:
        obd(campaign)
    assert raised.value.message == (
        "all.csv is no table of the Open Bandit Dataset: it has no column 'click'."
    )
    table.write_text("\n".join(TABLE.splitlines()[:2]) + ",1,2,3\n")
    with pytest.raises(RequestError, match=r"^all\.csv, line 2: column .* is not there"):
        obd(campaign)
    table.write_text("")
    with pytest.raises(RequestError, match=r"^all\.csv cannot be read as csv: "):
        obd(campaign)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("24,1,3,", "24,1,,", "line 4: column 'position' is missing"),
        ("2019-11-24,1,3", "2019-11-24,,3", "line 4: column 'item_id' is missing"),
        (",1,1.0,a,x", ",,1.0,a,x", "line 5: column 'click' is missing"),
        (",0.75,", ",,", "line 4: column 'propensity' is missing or NaN"),
    ],
)
def test_missing_values_are_named_with_their_line(
    campaign: Path, old: str, new: str, told: str
) -> None:
    (campaign / "all.csv").write_text(TABLE.replace(old, new))
    with pytest.raises(RequestError) as raised:
        obd(campaign).whole()
    assert raised.value.message == f"all.csv, {told}."


def test_a_missing_affinity_is_named(campaign: Path) -> None:
    (campaign / "all.csv").write_text(TABLE.replace("20.0,21.0", "20.0,"))
    with pytest.raises(RequestError, match=r"line 4: column 'items' \(value 1, 4\) is missing"):
        obd(campaign, "items").whole()


def test_missing_features_of_users_have_no_indicator(campaign: Path) -> None:
    """As pandas has them, of numbers 4 and 5 in the place of x and y."""
    table = TABLE.replace(",c,x,", ",c,,").replace(",x,", ",4,").replace(",y,", ",5,")
    (campaign / "all.csv").write_text(table)
    expected = [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert obd(campaign).whole()["context"].tolist() == expected


def test_items_that_are_not_those_of_the_table_are_refused(campaign: Path) -> None:
    items = campaign / "item_context.csv"
    items.write_text(ITEMS.replace("0,2,0.5", "0,3,0.5"))
    with pytest.raises(RequestError) as raised:
        obd(campaign)
    assert raised.value.message == ("item_context.csv: its item_id are not 0 to 2, each once.")
    items.write_text("\n".join([*ITEMS.splitlines(), "3,3,0.0,p,1"]) + "\n")
    with pytest.raises(RequestError) as raised:
        obd(campaign, "items")
    assert raised.value.message == ("all.csv has affinities to 3 items, item_context.csv has 4.")
    items.unlink()
    assert "items" not in ObdFile(campaign / "all.csv").columns
    assert obd(campaign, "affinities").whole()["arms"].shape == (4, 3, 1)
