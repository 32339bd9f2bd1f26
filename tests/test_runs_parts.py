"""The parts of runs, of several seeds and of studies, by themselves."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from rlplug import AddOn, Algorithm
from rlplug.config.sections import EvaluationSection, RunConfig, RunSection
from rlplug.config.sources import Setting
from rlplug.errors import ConfigError, RequestError
from rlplug.evaluation import BestTracker
from rlplug.plugin import NoOptions
from rlplug.registry import FoundPlugin, Registry
from rlplug.runs.inline_plugins import InlinePlugins
from rlplug.runs.limits import Limits, check_stop_when
from rlplug.runs.request import Request, find_plugins, layers_of
from rlplug.runs.signals import Interrupted, Interrupts
from rlplug.runs.versions import installed_versions, refuse_other_versions


def config_of(evaluation: EvaluationSection | None = None, **run: Any) -> RunConfig:
    return RunConfig(
        run=RunSection(**{"algorithm": "none", "steps": 100, **run}),
        algorithm=NoOptions(),
        evaluation=evaluation or EvaluationSection(episodes=5, every=50),
    )


# -- limits ----------------------------------------------------------------------------------------


def test_a_limit_is_reached_at_its_number_and_not_before() -> None:
    limits = Limits(config_of(max_updates=10, max_minutes=2.0))
    assert limits.is_counting
    assert limits.reached(9, 119.9) == ""
    assert limits.reached(10, 0.0) == "10 updates (run.max_updates = 10)"
    assert limits.reached(9, 120.0) == "2 minutes (run.max_minutes = 2)"
    limits = Limits(config_of(max_episodes=3))
    limits.set_state({"episodes": 2})
    assert limits.reached(0, 0.0) == ""
    limits.set_state({"episodes": 3})
    assert limits.reached(0, 0.0) == "3 episodes (run.max_episodes = 3)"
    assert limits.get_state() == {"episodes": 3}
    without = Limits(config_of())
    assert not without.is_counting
    assert without.reached(10**9, 10.0**9) == ""
    assert without.reported({"a": 1.0}) == ""


def test_which_evaluation_was_the_best_is_part_of_the_state() -> None:
    section = EvaluationSection(episodes=5, every=50, patience=2)
    best, other = BestTracker(section), BestTracker(section)
    best.set_state({"best": 3.0, "best_step": 150, "without_better": 1})
    other.set_state(best.get_state())
    assert other.get_state() == {"best": 3.0, "best_step": 150, "without_better": 1}


def test_a_metric_an_evaluation_or_who_judges_it_ends_a_run() -> None:
    config = config_of(
        EvaluationSection(episodes=5, every=50, stop_at_return=9.0), stop_when="train/loss<0.5"
    )
    limits, best = Limits(config), BestTracker(config.evaluation)
    assert limits.reported({"train/loss": 0.5}) == ""
    assert limits.reported({"other": 0.1}) == ""
    assert (
        limits.reported({"train/loss": 0.4})
        == "train/loss = 0.4 (run.stop_when = 'train/loss<0.5')"
    )
    poor = {"eval/return_mean": 1.0}
    assert limits.evaluated(poor, best) == ""
    limits.judge = lambda metrics: "judged"
    assert limits.evaluated(poor, best) == "judged"
    assert limits.evaluated({**poor, "train/loss": 0.0}, best).startswith("train/loss = 0 ")
    assert limits.evaluated({"eval/return_mean": 9.0}, best).startswith("mean return 9 reached")


@pytest.mark.parametrize(
    ("evaluation", "stop_when", "said"),
    [
        (EvaluationSection(episodes=5, every=99), "eval/return_mean>3", ""),
        (EvaluationSection(episodes=5, every=100), "eval/return_mean>3", "no evaluation before"),
        (EvaluationSection(episodes=0, every=50), "eval/return_mean>3", "no evaluation before"),
        (EvaluationSection(episodes=5, every=0), "eval/return_mean>3", "no evaluation before"),
        (EvaluationSection(episodes=5, every=50), "eval/episodes_cut>3", ""),
        (EvaluationSection(episodes=5, every=50), "eval/retrn_mean>3", "did you mean"),
        (EvaluationSection(episodes=0, every=50), "train/loss<3", ""),
    ],
)
def test_a_condition_needs_an_evaluation_that_comes_before_the_end(
    evaluation: EvaluationSection, stop_when: str, said: str
) -> None:
    config = config_of(evaluation, stop_when=stop_when)
    if not said:
        check_stop_when(config)
        return
    with pytest.raises(ConfigError) as raised:
        check_stop_when(config)
    assert said in str(raised.value)
    if said == "no evaluation before":
        assert "--set evaluation.every=10" in raised.value.hints[-1]


# -- signals ---------------------------------------------------------------------------------------


def test_a_signal_has_the_exit_code_of_shells() -> None:
    assert (Interrupted(signal.SIGTERM).exit_code, Interrupted().exit_code) == (143, 130)
    assert Interrupted.of(KeyboardInterrupt()).number == signal.SIGINT
    own = Interrupted(signal.SIGHUP)
    assert Interrupted.of(own) is own


def send(number: int) -> None:
    """Send a signal to this process, and wait for what it raises."""
    os.kill(os.getpid(), number)
    time.sleep(1)


def test_the_first_signal_waits_for_a_check_and_the_second_does_not() -> None:
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert (interrupts.is_ending, interrupts.at_once) == (True, False)
        assert interrupts.poll() == (signal.SIGTERM, False)
        with pytest.raises(Interrupted) as raised:
            interrupts.check()
        assert raised.value.number == signal.SIGTERM
        with pytest.raises(Interrupted) as raised:
            send(signal.SIGINT)
        # What is told is the first one.
        assert (raised.value.number, interrupts.at_once) == (signal.SIGTERM, True)
        # A third one, while the second is answered, is not.
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.received().number == signal.SIGTERM
    assert {name: signal.getsignal(name) for name in before} == before


def test_a_signal_while_a_run_is_created_is_raised_after_that() -> None:
    with Interrupts() as interrupts:
        interrupts.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            interrupts.release()
        assert interrupts.at_once
    with Interrupts() as interrupts:
        interrupts.hold()
        interrupts.release()
        with pytest.raises(Interrupted):
            send(signal.SIGTERM)


def test_a_checkpoint_is_asked_for_once_at_the_next_check() -> None:
    asked: list[int] = []
    with Interrupts() as interrupts:
        interrupts.checkpoint = lambda: asked.append(1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert asked == []
        interrupts.check()
        interrupts.check()
        assert asked == [1]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert interrupts.poll() == (0, True)
        assert interrupts.poll() == (0, False)
        assert not interrupts.is_ending


# -- requests --------------------------------------------------------------------------------------


class Walk(Algorithm):
    """Walks."""


class GradNoise(AddOn):
    """Noise."""


REGISTRY = Registry.of(walk=Walk, grad_noise=GradNoise)


def test_a_request_is_what_its_file_flags_and_settings_say_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[run]\nalgorithm = 'walk'\nsteps = 1\nseed = 1\n[tune]\ntrials = 3\n")
    request = Request(
        config=file,
        flags={"run": {"steps": 2, "addons": ["grad-noise"]}},
        settings=(Setting("run.seed", 3), Setting("alpha", 4)),
    )
    layers = layers_of(request)
    assert layers.values == {
        "run": {"algorithm": "walk", "steps": 2, "seed": 3, "addons": ["grad-noise"]}
    }
    assert layers.origins[("run", "seed")] == "--set"
    assert [one.name for one in find_plugins(layers, REGISTRY)] == ["walk", "grad-noise"]
    with pytest.raises(RequestError, match="no algorithm was named"):
        find_plugins(layers_of(Request()), REGISTRY)
    with pytest.raises(RequestError, match="no algorithm is installed"):
        find_plugins(layers_of(Request()), Registry(()))
    for wrong in ("a", [1]):
        with pytest.raises(ConfigError, match="expected list of str"):
            find_plugins(
                layers_of(Request(flags={"run": {"algorithm": "walk", "addons": wrong}})), REGISTRY
            )


def test_classes_are_named_after_themselves_and_installed_ones_as_they_are() -> None:
    inline = InlinePlugins.of(Walk, ["ema", GradNoise()], Registry(()))
    assert (inline.algorithm, inline.addons, inline.rerunnable) == (
        "walk",
        ("ema", "grad-noise"),
        False,
    )
    target = f"{Walk.__module__}:{Walk.__qualname__}"
    known = FoundPlugin(kind="algorithm", name="mine", target=target, distribution="d", version="1")
    other = attrs.evolve(known, name="walk", target="x:Y")
    inline = InlinePlugins.of(Walk, [], Registry((known, other)))
    assert (inline.algorithm, inline.rerunnable) == ("mine", True)
    assert [one.name for one in inline.registry.found] == ["mine", "walk"]
    shadowed = InlinePlugins.of(Walk, [], Registry((other,)))
    assert [one.target for one in shadowed.registry.found] == [target]


def test_versions_must_be_the_same_on_all_hosts() -> None:
    here = installed_versions(REGISTRY.found)
    assert here["Python"].count(".") == 1
    assert here["torch"].startswith("torch 2.")
    assert here["plugin 'walk'"] == "not installed"
    refuse_other_versions(here, {name: one for name, one in here.items() if name != "torch"})
    with pytest.raises(RequestError) as raised:
        refuse_other_versions(here, {**here, "torch": "torch 1"})
    assert f"{here['torch']} on host {socket.gethostname()}, but torch 1" in str(raised.value)
    with pytest.raises(RequestError, match="plugin 'x' is absent"):
        refuse_other_versions(here, {"plugin 'x'": "x 1"})
