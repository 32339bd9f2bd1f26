"""Reading recorded runs: what a run is, its best evaluation, statistics of several."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

import rlplug
from rlplug.review.record import RunAbout
from rlplug.review.statistics import bootstrap, mean_interval
from rlplug.tracking.reading import recorded_runs


def test_a_record_says_what_was_run_and_which_options_differ_from_the_defaults(home: Path) -> None:
    options = {"tracking.enabled": False, "alpha": 2.0, "learner.max_grad_norm": 0.0}
    for seed in (1, 2):
        rlplug.run("linucb", steps=60, seed=seed, options=options)
    rlplug.run("linucb", steps=60, options={"tracking.enabled": False})

    newest, *others = (run.about for run in recorded_runs(home))

    assert newest.options == {}
    assert (newest.algorithm, newest.env, newest.steps) == ("linucb", "LinearBandit-v0", 60)
    assert [about.seed for about in others] == [2, 1]
    assert [about.shown_options for about in others] == ["alpha=2.0"] * 2
    assert others[0].group == others[1].group != newest.group


def test_a_longer_run_differs_in_its_steps_only(home: Path) -> None:
    options = {"tracking.enabled": False, "evaluation.episodes": 1}
    rlplug.run("a2c", "CartPole-v1", steps=80, options=options)
    (run,) = recorded_runs(home)
    assert run.about.options == {"evaluation.episodes": "1"}


def test_the_best_evaluation_is_reported_with_each_evaluation(home: Path) -> None:
    options = {"tracking.enabled": False, "evaluation.episodes": 2, "evaluation.every": 40}
    result = rlplug.run("a2c", "CartPole-v1", steps=200, options=options)
    (run,) = recorded_runs(home)
    assert run.best == result.best
    assert run.best is not None
    assert run.score == run.best[1]
    assert run.latest["eval/best_return_mean"] >= run.latest["eval/return_mean"]


def test_options_of_one_name_are_shown_with_their_sections() -> None:
    about = RunAbout(options={"algorithm.alpha": "2", "addons.a.scale": "1", "addons.b.scale": "3"})
    assert about.shown_options == "alpha=2 addons.a.scale=1 addons.b.scale=3"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("algorithm.learning_rate", "learning_rate"),
        ("sampling.num_envs", "num_envs"),
        ("addons.clock.period", "period"),
        # Alone, these would be options of the algorithm, ambiguous, or unknown.
        ("modules.adversary.learning_rate", "modules.adversary.learning_rate"),
        ("league.every", "league.every"),
        ("addons.clock.num_envs", "addons.clock.num_envs"),
        ("env.size", "env.size"),
        ("env.goal.place", "env.goal.place"),
    ],
)
def test_options_are_shown_as_they_are_set(path: str, shown: str) -> None:
    assert RunAbout(options={path: "1"}).shown_options == f"{shown}=1"


def test_an_option_of_a_module_is_listed_beside_that_of_the_algorithm() -> None:
    options = {"algorithm.gamma": "0.9", "modules.a.gamma": "0.8", "modules.a.clip": "1"}
    shown = "gamma=0.9 modules.a.gamma=0.8 modules.a.clip=1"
    assert RunAbout(options=options).shown_options == shown


def test_bootstrap_intervals_contain_the_estimate_and_depend_on_the_seed_only() -> None:
    scores = [1.0, 2.0, 3.0, 4.0, 100.0, 3.0, 2.0, 3.0]
    found = bootstrap(scores)
    assert found == bootstrap(scores)
    # Without the lowest and the highest two: 2, 3, 3, 3.
    assert found.estimate == 2.75
    assert found.low <= found.estimate <= found.high
    mean = mean_interval(scores)
    assert mean.estimate == numpy.mean(scores)
    assert mean.high > found.high


def test_the_interval_of_one_score_is_that_score() -> None:
    assert str(mean_interval([5.0])) == "5 [5, 5]"
