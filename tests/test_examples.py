"""The examples run from an empty folder, and what they print is true."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.warm import Warm

Printed = Callable[..., str]

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def printed(tmp_path: Path, warm: Warm) -> Printed:
    """What an example prints, run from an empty folder."""
    environ = {name: value for name, value in os.environ.items() if "MLFLOW" not in name}
    environ.pop("RLPLUG_HOME", None)
    environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONUTF8": "1"}

    def run(name: str, *shorter: str) -> str:
        code = (EXAMPLES / name).read_text(encoding="utf-8")
        if shorter:
            whole, part = shorter
            assert whole in code
            code = code.replace(whole, part)
        done = warm.start(code=code, cwd=tmp_path, environ=environ)
        assert done.wait() == 0, done.err
        return done.out

    return run


def shares(text: str) -> list[float]:
    """The percentages in a text, in order."""
    return [float(one) for one in re.findall(r"([\d.]+)%", text)]


LONG = pytest.param((), marks=pytest.mark.long)


@pytest.mark.parametrize("shorter", [("VISITORS = 6_000", "VISITORS = 2_000"), LONG])
def test_news_page_gets_more_clicks_than_chance_and_is_recorded(
    tmp_path: Path, empty_store: Path, printed: Printed, shorter: Sequence[str]
) -> None:
    if shorter:
        (tmp_path / "rlplug_runs").mkdir()
        shutil.copy(empty_store, tmp_path / "rlplug_runs" / "mlflow.db")
    text = printed("news.py", *shorter)
    by_chance, learned = shares(text)
    assert learned > 1.3 * by_chance
    assert "look at it: rlplug ui" in text
    with closing(sqlite3.connect(tmp_path / "rlplug_runs" / "mlflow.db")) as database:
        assert database.execute("select status from runs").fetchall() == [("FINISHED",)]


@pytest.mark.parametrize("shorter", [("ROWS = 1_500", "ROWS = 500"), LONG])
def test_table_is_learned_from_offers_alone_and_is_not_recorded(
    tmp_path: Path, printed: Printed, shorter: Sequence[str]
) -> None:
    by_chance, greedy, exploring, after = shares(printed("table.py", *shorter))
    assert by_chance == 33.0
    assert greedy > 60.0
    assert exploring > 80.0
    assert after > 80.0
    assert not (tmp_path / "rlplug_runs" / "mlflow.db").exists()


def test_service_goes_on_after_a_restart_and_knows_who_wants_which_banner(
    tmp_path: Path, printed: Printed
) -> None:
    text = printed("service.py")
    first, restarted = shares(text)
    # Shown at random, banners sell to (0.25 + 0.25 + 0.2) / 3 of the visitors: 23.3 %.
    assert first > 25.0
    assert restarted > 33.0
    assert "known customer in the evening: summer sale" in text
    assert "known customer on a phone: free delivery" in text
    assert not list(tmp_path.iterdir())


def test_every_example_is_in_the_readme() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for example in EXAMPLES.glob("*.py"):
        assert f"examples/{example.name}`" in readme


@pytest.mark.parametrize("shorter", [("steps=25_000", "steps=7_000"), LONG])
def test_a_league_renews_its_copies_and_wins_more_than_it_did(
    printed: Printed, shorter: Sequence[str]
) -> None:
    text = printed("league.py", *shorter)
    (copies,) = re.findall(r"(\d+) copies", text)
    assert int(copies) > (1 if shorter else 3)
    (rating,) = re.findall(r"rating ([\d,]+),", text)
    assert int(rating.replace(",", "")) > (1100 if shorter else 1300)
    # Of two random players, each does not lose 56 % of the games.
    assert shares(text)[-1] > (65.0 if shorter else 70.0)
