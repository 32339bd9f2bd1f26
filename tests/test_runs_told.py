"""What runs say where a part of them does not work, and what is refused before they begin."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gymnasium import spaces

import rlplug as library
from rlplug.config.secrets import masked_toml
from rlplug.config.sources import settings_of
from rlplug.config.toml import flat
from rlplug.errors import ConfigError, PluginError, RequestError
from rlplug.plugin import Module
from rlplug.registry import Registry
from rlplug.runs import league
from rlplug.runs.kinds import setup_for
from rlplug.runs.league import LeaguePlot
from rlplug.runs.loading import about
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request
from rlplug.runs.resume import _drift, _refuse_finished, resumable_by_name
from rlplug.runs.signals import Interrupted, Interrupts
from tests.groups import run_in


def prepared(steps: int = 100, algorithm: str = "linucb", env: str = "", **more: Any) -> Prepared:
    flags = {"run": {"algorithm": algorithm, "env": env, "steps": steps}}
    return prepare(Request(flags=flags, settings=settings_of(more)), Registry.installed())


@pytest.mark.parametrize(("notice", "is_terminal"), [(True, True), (True, False), (False, True)])
def test_a_person_at_a_terminal_is_told_that_a_signal_came(
    monkeypatch: pytest.MonkeyPatch, notice: bool, is_terminal: bool
) -> None:
    read, write = os.pipe()
    terminal = SimpleNamespace(isatty=lambda: is_terminal, fileno=lambda: write)
    with Interrupts(notice=notice) as interrupts, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        interrupts.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            interrupts.check()
    os.close(write)
    with os.fdopen(read, "rb") as told:
        assert (b"a second Ctrl-C ends it at once" in told.read()) == (notice and is_terminal)


def test_a_league_that_cannot_be_drawn_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = []

    def draw(**given: Any) -> None:
        drawn.append(given)
        raise ValueError("a broken font")

    copies = [SimpleNamespace(number=0, step=10), SimpleNamespace(number=1, step=20)]
    pool: Any = SimpleNamespace(
        copies=[],
        history=[(10, 1000.0), (20, 1010.0)],
        elo=1020.0,
        win_rate_of=lambda one, two: 0.5,
    )
    plot = LeaguePlot(pool)
    monkeypatch.setattr(league, "draw_league", draw)
    config = SimpleNamespace(run=SimpleNamespace(algorithm="ppo", seed=3))
    run: Any = SimpleNamespace(folder=tmp_path, environment="Relay", config=config)
    plot.run_finished(30)
    plot.run_started(run)
    plot.run_finished(30)
    assert drawn == []
    pool.copies = copies
    plot.run_failed(30)
    assert caplog.messages == ["rlplug: the league cannot be drawn: a broken font."]
    (given,) = drawn
    assert given == {
        "steps": [10, 20],
        "win_rates": [[0.5] * 3] * 3,
        "ratings": [(10, 1000.0), (20, 1010.0), (30, 1020.0)],
        "subtitle": "ppo on Relay, seed 3",
        "file": tmp_path / "plots" / "league.png",
    }


class Feedless(library.Algorithm):
    """Has a number in place of a feed."""

    def feed(self) -> Any:
        return 3

    def build(self) -> Module:
        return Module()


def test_a_feed_that_is_none_is_an_error_of_the_plugin(home: Path) -> None:
    with pytest.raises(PluginError) as raised:
        library.run(Feedless, "CartPole-v1", steps=10, options={"tracking.enabled": False})
    assert "feed() returned int.\n" in str(raised.value)
    assert "try: return rlplug.feeds.Stream(...), Rollout(...) or Replay(...)" in str(raised.value)


def test_a_server_tells_whether_observations_are_normalized() -> None:
    def told(normalization: Any) -> Any:
        config = SimpleNamespace(run=SimpleNamespace(algorithm="ppo"))
        policy = SimpleNamespace(
            observation_space=spaces.Box(0, 1, (2,)),
            action_space=spaces.Discrete(2),
            frame_stack=4,
            normalization=normalization,
        )
        loaded: Any = SimpleNamespace(
            prepared=SimpleNamespace(config=config),
            policy=policy,
            manifest=SimpleNamespace(run_id="a", step=3, plugins={"ppo": "rlplug-ppo 1.0"}),
            path=Path("step-3"),
            saved=SimpleNamespace(environment={"name": "E"}),
        )
        return about(loaded)

    assert told(None)["normalizes_observations"] is False
    assert told(SimpleNamespace(changes_observations=False))["normalizes_observations"] is False
    facts = told(SimpleNamespace(changes_observations=True))
    assert facts["normalizes_observations"] is True
    assert (facts["frame_stack"], facts["checkpoint"], facts["step"]) == (4, "step-3", 3)
    assert "agents" not in facts


@pytest.mark.parametrize("given", [{}, {"problem_seed": 7}])
def test_learners_have_the_same_problem_of_a_bandit(given: dict[str, int]) -> None:
    run = prepared(env="LinearBandit-v0", **{f"env.{name}": one for name, one in given.items()})
    seeds = set()
    for index in range(2):
        setup = setup_for(run, "LinearBandit-v0", index=index, several=True)
        environments = setup.environments()
        seeds.add(environments.vector.unwrapped.problem.problem_seed)
        environments.close()
    (seed,) = seeds
    assert seed is not None
    assert seed == given.get("problem_seed", seed)


def test_what_stands_in_place_of_a_section_is_a_problem() -> None:
    values = {"sampling": 3, "samplign": {}, "algorithm": {}, "addons": {"rnd": {}}}
    flags = {"run": {"algorithm": "linucb"}, **values}
    with pytest.raises(ConfigError) as raised:
        prepare(Request(flags=flags), Registry.installed())
    assert [(one.path, one.message) for one in raised.value.problems] == [
        ("sampling", "expected a section [sampling], got 3"),
        ("samplign", "unknown section, did you mean 'sampling'?"),
        ("addons.rnd", "this add-on is not used: add --with rnd"),
    ]


def test_a_name_of_two_runs_does_not_tell_which_goes_on(home: Path) -> None:
    wanted = prepared()
    assert resumable_by_name("night", wanted) is None
    for run_id in ("a", "b"):
        file = run_in(home, run_id, 0) / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "run_name": "night"}))
    with pytest.raises(RequestError) as raised:
        resumable_by_name("night", wanted)
    assert re.fullmatch(
        r"2 runs are named 'night': (a, b|b, a)\.\n"
        r"  try: rlplug resume with the id of one of them, or another name",
        str(raised.value),
    )


def test_drift_is_other_options_fewer_steps_and_other_versions_of_plugins() -> None:
    old = prepared()
    here = old.algorithm.found.package
    manifest: Any = SimpleNamespace(plugins={"linucb": here, "other": "gone 1.0"})
    was = flat(tomllib.loads(masked_toml(old.config)))
    assert _drift(was, prepared(), manifest) == {}
    assert _drift(was, prepared(101), manifest) == {}
    assert _drift(was, prepared(99), manifest) == {"run.steps": "100 → 99"}
    assert _drift(was, prepared(alpha=0.5), None) == {"algorithm.alpha": "1.0 → 0.5"}
    manifest.plugins["linucb"] = "rlplug-linucb 0.0.1"
    assert _drift(was, prepared(), manifest) == {"plugin linucb": f"rlplug-linucb 0.0.1 → {here}"}


def test_a_run_does_not_go_back_to_fewer_steps_than_it_has_made(tmp_path: Path) -> None:
    resumed: Any = SimpleNamespace(folder=tmp_path / "a", prepared=prepared(40), step=50, drift={})
    with pytest.raises(RequestError) as raised:
        _refuse_finished(resumed, 100)
    assert str(raised.value) == "run a is at step 50 already, beyond 40.\n  try: --steps 100"
    # It took more steps than it was asked for: collections are whole.
    _refuse_finished(resumed, 40)
    resumed.step = 40
    _refuse_finished(resumed, 100)
