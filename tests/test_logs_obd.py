"""The Open Bandit Dataset as a log: a small campaign, written here, and the one that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from rlplug.errors import ConfigError, RequestError
from rlplug.logs import Log
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


def refused(folder: Path, arms: str = "arms*") -> str:
    with pytest.raises(RequestError) as raised:
        list(obd(folder, arms).read(0, 50_000))
    return raised.value.message


def test_rows_are_read_from_any_row_with_indicators_of_user_features(campaign: Path) -> None:
    expected: dict[str, list[Any]] = {
        # Levels a, b, c and x, y.
        "context": [[0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 0, 1, 1, 0], [1, 0, 0, 1, 0]],
        "position": [3, 1, 3, 1],
        "action": [2, 0, 1, 2],
        "reward": [0.0, 1.0, 0.0, 1.0],
        "propensity": [0.25, 0.5, 0.75, 1.0],
    }
    log = obd(campaign)
    assert (log.rows, log.num_arms, log.is_bandit) == (4, 3, True)
    assert set(log.roles.columns) == set(expected)
    for first in range(4):
        for size in (1, 2, 4):
            batches = list(log.read(first, size))
            assert [batch.first for batch in batches] == list(range(first, 4, size))
            for name, column in expected.items():
                read = numpy.concatenate([batch[name] for batch in batches])
                assert read.tolist() == column[first:], name
    assert log.encoder.categories == {
        "user_feature_0": ("a", "b", "c"),
        "user_feature_1": ("x", "y"),
    }
    # Missing features have no level where the option says so; 4 and 5 in the place of x and y.
    table = TABLE.replace(",c,x,", ",c,,").replace(",x,", ",4,").replace(",y,", ",5,")
    (campaign / "all.csv").write_text(table)
    expected["context"][2][3] = 0
    read = opened(campaign, format="obd", missing="zero").whole()["context"]
    assert read.tolist() == expected["context"]


def test_items_have_their_features_and_the_affinity_of_the_user(campaign: Path) -> None:
    """Numbers as they are, and then the levels p, q and r."""
    own = [[1.5, 8.0, 0.0, 1.0, 0.0], [2.5, 9.0, 0.0, 0.0, 1.0], [0.5, 7.0, 1.0, 0.0, 0.0]]
    affinities = [[10.0 * row + item for item in range(3)] for row in range(4)]
    log = obd(campaign, "item_features")
    assert log.num_arms == 3
    assert log.whole()["arms"].tolist() == [own] * 4
    alone = obd(campaign, "affinities").whole()["arms"]
    assert alone[:, :, 0].tolist() == affinities
    both = [[[*features, a] for features, a in zip(own, row, strict=True)] for row in affinities]
    assert obd(campaign, "items").whole()["arms"].tolist() == both
    assert next(obd(campaign, "items").read(2, 1))["arms"].tolist() == both[2:3]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("24,1,3,", "24,1,,", "line 4: column 'position' is missing"),
        ("2019-11-24,1,3", "2019-11-24,,3", "line 4: column 'item_id' is missing"),
        (",1,1.0,a,x", ",,1.0,a,x", "line 5: column 'click' is missing or NaN"),
        (",0.75,", ",,", "line 4: column 'propensity_score' is missing or NaN"),
        ("20.0,21.0", "20.0,", "line 4: column 'items' (value 1, 5) is missing or NaN"),
    ],
)
def test_missing_values_are_named_with_their_line(
    campaign: Path, old: str, new: str, told: str
) -> None:
    (campaign / "all.csv").write_text(TABLE.replace(old, new))
    assert refused(campaign, "items") == f"all.csv, {told}."


def test_what_is_no_campaign_is_refused(campaign: Path) -> None:
    assert refused(campaign.parent) == (
        f"data.files: '{campaign.parent}' is no folder of the Open Bandit Dataset: it has no "
        "random.csv."
    )
    table, items = campaign / "all.csv", campaign / "item_context.csv"
    assert opened(table, format="obd").rows == 4
    for content, told in (
        (
            TABLE.replace("click", "c"),
            "is no table of the Open Bandit Dataset: it has no column 'c",
        ),
        ("\n".join(TABLE.splitlines()[:2]) + ",1,2,3\n", "line 2: column .* is not there"),
        ("", "cannot be read as csv"),
        (TABLE.splitlines()[0] + "\n", "the log has no rows"),
    ):
        table.write_text(content)
        with pytest.raises(RequestError, match=told):
            obd(campaign)
    table.write_text(TABLE)
    items.write_text(ITEMS.replace("0,2,0.5", "0,3,0.5"))
    assert refused(campaign) == "item_context.csv: its item_id are not 0 to 2, each once."
    items.write_text("\n".join([*ITEMS.splitlines(), "3,3,0.0,p,1"]) + "\n")
    assert refused(campaign, "items") == (
        "all.csv has affinities to 3 items, item_context.csv has 4."
    )
    items.unlink()
    with pytest.raises(ConfigError, match="no column 'items' in all"):
        obd(campaign, "items")


def test_items_of_the_shipped_campaign_are_those_of_pandas() -> None:
    import pandas

    obp = pytest.importorskip("obp", reason="the test extra installs it")
    folder = Path(obp.__file__).parent / "dataset" / "obd" / "bts" / "men"
    table = pandas.read_csv(folder / "men.csv", index_col=0)
    items = pandas.read_csv(folder / "item_context.csv", index_col=0).set_index("item_id")
    features = pandas.get_dummies(items).to_numpy(float)
    log = obd(folder, "items")
    assert (log.rows, log.num_arms) == (len(table), len(items))
    rows = next(log.read(0, 500))
    for role, name in (("action", "item_id"), ("reward", "click"), ("propensity", None)):
        assert numpy.array_equal(rows[role], table[name or "propensity_score"][:500]), role
    assert numpy.array_equal(rows["position"], table["position"][:500])
    users = pandas.get_dummies(table.filter(like="user_feature"))
    assert numpy.array_equal(rows["context"], users.to_numpy(float)[:500])
    # Columns of numbers come first in pandas, as they do in the file.
    assert rows["arms"].shape == (500, len(items), features.shape[1] + 1)
    assert numpy.array_equal(rows["arms"][7, :, :-1], features)
    affinities = table.filter(like="affinity").to_numpy(float)[:500]
    assert numpy.array_equal(rows["arms"][:, :, -1], affinities)
