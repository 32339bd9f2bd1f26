"""Logs as shops have them: text and categories among features, arms with names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
from pyarrow import csv, parquet

import rlplug
from rlplug.errors import ConfigError, RequestError
from tests.log_files import opened, write

OFF = {"tracking.enabled": False}
COLUMNS = {"data.context": "*", "data.action": "shown", "data.reward": "clicked"}
COLUMNS |= {"data.propensity": "p", "data.categories": "zip"}
RED = {"color": "red", "zip": 8001, "age": 0.2, "member": True}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))
    return tmp_path


def clicks(rows: int = 2000, seed: int = 0) -> pyarrow.Table:
    """The color decides between banners a and c; b is for ages above a half."""
    random = numpy.random.default_rng(seed)
    colors = numpy.array(["blue", "green", "red"])[random.integers(0, 3, rows)]
    ages = random.random(rows)
    shown = numpy.array(["banner_a", "banner_b", "banner_c"])[random.integers(0, 3, rows)]
    wanted = numpy.where(colors == "red", "banner_a", "banner_c")
    wanted[(ages > 0.5) & (colors == "green")] = "banner_b"
    return pyarrow.table(
        {
            "color": colors,
            "zip": random.integers(8000, 8003, rows),
            "age": ages,
            "member": random.random(rows) < 0.5,
            "shown": shown,
            "clicked": (shown == wanted).astype(float),
            "p": numpy.full(rows, 1 / 3),
        }
    )


def learned(data: Path, **options: Any) -> Any:
    return rlplug.run("linucb", data=data, options={**OFF, **COLUMNS, **options})


def test_a_policy_takes_levels_and_returns_arms_by_name(
    home: Path, request: pytest.FixtureRequest
) -> None:
    command: Callable[..., Any] = request.getfixturevalue("rlplug")
    table = clicks()
    parquet.write_table(table, home / "clicks.parquet")
    csv.write_csv(table, home / "clicks.csv")
    archive: dict[str, Any] = {name: table[name].to_numpy() for name in table.column_names}
    archive |= {name: archive[name].astype(str) for name in ("color", "shown")}
    numpy.savez(home / "clicks.npz", **archive)
    kept = [learned(home / f"clicks.{end}") for end in ("parquet", "csv", "npz")]
    policies = [rlplug.load(result.folder) for result in kept]
    for policy in policies:
        assert policy.features == ("color", "zip", "age", "member")
        assert policy.encoder == policies[0].encoder
        assert policy.encoder.categories["zip"] == ("8000", "8001", "8002")
        assert policy.predict(RED) == "banner_a"
        rows = [RED, {**RED, "color": "blue"}, {**RED, "color": "green", "age": 0.9}]
        chosen = ["banner_a", "banner_c", "banner_b"]
        assert policy.predict(rows).tolist() == chosen
        assert policy.predict(pandas.DataFrame(rows)).tolist() == chosen
        frame = pandas.DataFrame(rows).astype({"color": "category", "zip": float})
        assert policy.predict(frame).tolist() == chosen
    # Rows in which the order of columns, of rows and of arms is another one.
    held = clicks(seed=1).sort_by([("shown", "descending")])
    held = held.select(["p", "member", "shown", "age", "zip", "clicked", "color"])
    parquet.write_table(held, home / "held.parquet")
    told = command("ope", "last", "--data", str(home / "held.parquet"), "--json")
    (judged,) = json.loads(told.out)["runs"]
    assert judged["estimates"]["snips"]["value"] > 0.9
    assert judged["warnings"] == []
    # Another policy, with other levels, reads the same rows in its own way.
    few = clicks().filter(pyarrow.compute.field("zip") > 8000)
    learned(write(home / "few.csv", few.to_pydict()))
    told = command("ope", "last", "--data", str(home / "held.parquet"), "--against", kept[0].run_id)
    assert told.code == 0, told.err
    assert "warning: A: levels that training did not have" in told.err


def test_levels_and_arms_that_training_did_not_have(
    home: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    command: Callable[..., Any] = request.getfixturevalue("rlplug")
    table = clicks().to_pydict()
    policy = rlplug.load(learned(write(home / "clicks.parquet", table)).folder)
    # The features of an unknown level are 0.
    assert policy.predict({**RED, "color": "pink"}) in policy.encoder.arms
    policy.predict([{**RED, "color": "pink", "zip": 1}] * 2)
    assert dict(policy.unseen) == {("color", "pink"): 3, ("zip", "1"): 2}
    assert "'pink' in column 'color' (1)" in caplog.text
    pink = {**table, "color": ["pink", "pink", *table["color"][2:]]}
    told = command("ope", "last", "--data", str(write(home / "pink.parquet", pink)), "--json")
    assert "'pink' in column 'color' (2)" in told.out
    other = {**table, "shown": [*table["shown"][:-1], "banner_z"]}
    path = write(home / "other.csv", other)
    told = command("ope", "last", "--data", str(path))
    assert told.code == 2
    assert "other.csv, line 2,001: column 'shown' holds 'banner_z', which is none of" in told.err
    for values, said in (
        ({"color": None}, r"observation\['color'\] is missing"),
        ({"age": float("nan")}, r"observation\['age'\] is missing"),
        ({"age": "old"}, r"observation\['age'\] cannot be read as float64"),
        ({"sex": "f"}, "has 'sex', which is none of the features"),
    ):
        with pytest.raises(RequestError, match=said):
            policy.predict({**RED, **values})
    with pytest.raises(RequestError, match="expected features by name"):
        policy.predict([1.0, 8001, 0.2, 1])


def test_a_run_goes_on_with_the_levels_and_arms_of_another(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = learned(write(home / "monday.parquet", clicks().to_pydict()))
    table = clicks(400, seed=1).to_pydict()
    # Fewer levels, one of them new, and fewer arms.
    table["color"] = ["pink" if color == "blue" else color for color in table["color"]]
    keep = [row for row, shown in enumerate(table["shown"]) if shown != "banner_a"]
    table = {name: [column[row] for row in keep] for name, column in table.items()}
    tuesday = write(home / "tuesday.parquet", table)
    second = learned(tuesday, **{"run.init_from": str(first.folder)})
    assert rlplug.load(second.folder).encoder == rlplug.load(first.folder).encoder
    assert rlplug.load(second.folder).predict(RED) == "banner_a"
    assert "'pink' in column 'color'" in caplog.text
    table["shown"][0] = "banner_z"
    write(tuesday, table)
    with pytest.raises(RequestError, match="row 0: column 'shown' holds 'banner_z', which is none"):
        learned(tuesday, **{"run.init_from": str(first.folder)})


def test_arms_numbered_from_one_keep_their_numbers(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = home / "log.parquet"
    random = numpy.random.default_rng(0)
    arms, x = random.integers(1, 4, 600), random.random(600)
    table = {
        "x": x,
        "action": arms,
        "reward": (arms == 3) * x,
        "propensity": numpy.full(600, 1 / 3),
    }
    result = rlplug.run("linucb", data=write(path, table), options={**OFF, "data.context": "x"})
    assert "the log has no arm 0: its 3 arms are 1, 2, 3" in caplog.text
    policy = rlplug.load(result.folder)
    assert (policy.action_space.n, policy.predict({"x": 0.5})) == (3, 3)
    # With a value per arm, those are counted; a number of arms that was set counts from 0.
    shares = {f"propensities_{arm}": numpy.full(600, 1 / 3) for arm in (1, 2, 3)}
    assert opened(write(path, {**table, **shares})).encoder.arms == (1, 2, 3)
    assert opened(write(path, table), num_arms=4).encoder.arms == ()
    assert opened(write(path, {**table, "action": arms - 1})).encoder.arms == ()
    assert opened(write(path, {**table, "action": 100 * arms})).encoder.arms == (100, 200, 300)


TABLE: dict[str, list[Any]] = {
    "context_a": ["x", "y", None, "x"],
    "context_b": [1.0, None, 3.0, 5.0],
    "action": ["up", "down", "up", "down"],
    "reward": [1.0, 0.0, 1.0, 0.0],
}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_missing_values_are_refused_or_filled(tmp_path: Path, suffix: str) -> None:
    table = TABLE
    if suffix == "csv":
        table = {name: ["" if value is None else value for value in TABLE[name]] for name in TABLE}
    path = write(tmp_path / f"log.{suffix}", table)
    where = "line 3" if suffix == "csv" else "row 1"
    with pytest.raises(RequestError, match=f"{where}: column 'context_b' is missing"):
        opened(path)
    for missing, filled in (("zero", 0.0), ("mean", 3.0)):
        rows = opened(path, missing=missing).whole()
        assert rows["context"].tolist() == [[1, 0, 1.0], [0, 1, filled], [0, 0, 3.0], [1, 0, 5.0]]
        # down, up
        assert rows["action"].tolist() == [1, 0, 1, 0]


def test_categories_are_hashed_on_request(tmp_path: Path) -> None:
    names = [f"user_{index}" for index in range(1200)]
    table = {"user": names, "age": [1.0] * 1200, "action": [0] * 1200, "reward": [0.0] * 1200}
    path = write(tmp_path / "log.parquet", table)
    with pytest.raises(RequestError, match="column 'user' has more than 1,000 levels") as raised:
        opened(path, context="user,age")
    assert "data.hashed=user" in str(raised.value)
    context = opened(path, context="user,age", hashed="user", hash_size=8).whole()["context"]
    assert context.shape == (1200, 9)
    assert (context[:, :8].sum(1) == 1).all()
    assert (context[:, :8].sum(0) > 100).all()
    # The same ones in every process.
    assert context[:4, :8].argmax(1).tolist() == [6, 0, 2, 4]


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ({"context_b": ["1", "2", "n/a", "4"]}, {}, "'context_b' holds string: 'n/a' among num"),
        ({"action": ["up", "down", None, "up"]}, {}, "row 2: column 'action' is missing"),
        ({}, {"num_arms": 5}, "data.num_arms is 5, column 'action' names 2 arms"),
        ({}, {"categories": "color"}, "no column 'color' among those of the context"),
        ({"propensities_up": [0.5] * 4, "propensities_left": [0.5] * 4}, {},
         "column 'propensities_left' is in the place of arm 'down'"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_as_names_is_refused(
    tmp_path: Path, table: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    path = write(tmp_path / "log.parquet", {**TABLE, **table})
    with pytest.raises((RequestError, ConfigError), match=said):
        opened(path, **{"missing": "zero", **options}).whole()
    assert opened(write(path, TABLE), missing="zero").encoder.arms == ("down", "up")
