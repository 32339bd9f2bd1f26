"""`rlplug ablate` pairs seeds: an add-on that changes nothing makes a difference of exactly 0."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplug.config.sources import Setting
from rlplug.errors import PluginError, RequestError
from rlplug.registry import Registry
from rlplug.runs.request import Request
from rlplug.runs.seeds.ablation import AblationRequest, Difference

Cli = Callable[..., Any]


def test_an_add_on_that_changes_nothing_makes_a_difference_of_exactly_0(
    rlplug: Cli, home: Path
) -> None:
    flags = ["--algo", "linucb", "--steps", "300", "--set", "tracking.enabled=false"]
    done = rlplug("ablate", *flags, "--without", "ema", "--seeds", "1,2", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["without"] == "ema"
    assert set(found["differences"]) == {"reward", "regret"}
    for one in found["differences"].values():
        assert one["seeds"] == [1, 2]
        assert one["with"] == one["without"]
        assert one["mean"] == {"estimate": 0.0, "low": 0.0, "high": 0.0}
        # Two seeds are two runs.
        assert one["with"][0] != one["with"][1]


def test_differences_are_of_pairs() -> None:
    found = Difference(name="return", seeds=(0, 1), whole=(3.0, 110.0), without=(1.0, 100.0))
    assert found.values == (2.0, 10.0)
    assert found.mean.estimate == 6.0
    # Seeds differ by a hundred, pairs by eight.
    assert (found.mean.low, found.mean.high) == (2.0, 10.0)


def request(*settings: tuple[str, Any]) -> Request:
    return Request(
        flags={"run": {"algorithm": "good"}},
        settings=tuple(Setting(key, value) for key, value in settings),
    )


def addons_of(one: Request) -> list[str]:
    return list(one.flags["run"]["addons"])


def test_options_of_an_add_on_are_left_out_with_it(installed: Path) -> None:
    registry = Registry.installed()
    settings = (("scale", 2.0), ("addons.scale.num_envs", 3), ("gamma", 0.5))
    asked = AblationRequest.of(request(*settings), ["quiet"], ["scale"], registry)
    assert addons_of(asked.whole) == ["quiet", "scale"]
    (without,) = asked.requests(registry).values()
    assert addons_of(without) == ["quiet"]
    assert [one.key for one in without.settings] == ["gamma"]
    assert len(asked.whole.settings) == 3


def test_without_names_each_add_on_is_left_out_in_turn(installed: Path) -> None:
    registry = Registry.installed()
    asked = AblationRequest.of(request(), ["scale", "quiet"], [], registry)
    requests = asked.requests(registry)
    assert {name: addons_of(one) for name, one in requests.items()} == {
        "scale": ["quiet"],
        "quiet": ["scale"],
    }


def test_no_add_on_and_unknown_ones_are_refused(installed: Path) -> None:
    registry = Registry.installed()
    with pytest.raises(RequestError, match="nothing to leave out"):
        AblationRequest.of(request(), [], [], registry)
    with pytest.raises(PluginError, match=r"unknown add-on 'quit'\. Did you mean 'quiet'"):
        AblationRequest.of(request(), [], ["quit"], registry)
