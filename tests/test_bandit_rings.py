"""The rings: a generated table, and the bandit that is made of it."""

from __future__ import annotations

import gymnasium
import numpy
import pytest

from rlplug.bandits import load_table
from rlplug.bandits.loading import rings_table
from rlplug.errors import RequestError


def test_without_noise_every_point_lies_on_its_ring() -> None:
    table = rings_table(rows=12, rings=4, classes=2, noise=0.0)
    distances = numpy.linalg.norm(table.features, axis=1)
    assert distances == pytest.approx([1.0, 2.0, 3.0, 4.0] * 3)
    assert table.labels.tolist() == [0, 1, 0, 1] * 3
    assert table.columns == ("x", "y")


def test_every_class_is_all_around_the_origin() -> None:
    table = rings_table()
    for label in range(3):
        of_class = table.features[table.labels == label]
        assert len(of_class) == pytest.approx(2_000 / 3, abs=1)
        # The mean of points that were spread evenly over a ring of radius 6 strays by 6 / √n.
        assert abs(of_class.mean(0)).max() < 3 * 6.0 / len(of_class) ** 0.5


def test_the_table_is_known_by_its_name_and_is_always_the_same() -> None:
    one, two = load_table("rings"), load_table("rings")
    assert one.name == "rings"
    assert one.features.tolist() == two.features.tolist()
    assert one.features.tolist() != rings_table(seed=1).features.tolist()


def test_a_name_that_is_nearly_right_is_guessed() -> None:
    with pytest.raises(RequestError, match="did you mean 'rings'"):
        load_table("ring")


@pytest.mark.parametrize("n", [1, 3])
def test_the_bandit_of_the_rings_has_their_classes_as_arms(n: int) -> None:
    envs = gymnasium.make_vec("rlplug.bandits:RingsBandit-v0", num_envs=n)
    assert envs.single_action_space == gymnasium.spaces.Discrete(3)
    seen, _ = envs.reset(seed=0)
    assert seen.shape == (n, 3)
    assert numpy.linalg.norm(seen, axis=1) == pytest.approx(numpy.ones(n))
    rewards = [envs.step(numpy.full(n, step % 3))[1] for step in range(60)]
    assert set(numpy.concatenate(rewards).tolist()) == {0.0, 1.0}


def test_options_of_the_table_hold_for_the_bandit_of_the_rings() -> None:
    env = gymnasium.make("rlplug.bandits:RingsBandit-v0", preprocess="none")
    seen, _ = env.reset(seed=0)
    assert 0.3 < numpy.linalg.norm(seen) < 6.7
