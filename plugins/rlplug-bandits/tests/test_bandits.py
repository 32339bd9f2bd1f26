"""Every rule by its formula, with numbers that can be worked out by hand, and in a run."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_bandits import (
    UCB1,
    ArmCounts,
    BetaThompsonModule,
    EpsilonGreedyConfig,
    EpsilonGreedyModule,
    GaussianThompsonModule,
    MetricUCBModule,
    SoftmaxConfig,
    SoftmaxModule,
    ThompsonConfig,
    UCB1Config,
    UCB1Module,
)
from rlplug_bandits.config import BanditOptions

import rlplug
import rlplug.bandits
from rlplug import ActInput
from rlplug.errors import RequestError, RunFailedError

# -- rules -----------------------------------------------------------------------------------------


RULES: list[Any] = [
    UCB1Module,
    MetricUCBModule,
    BetaThompsonModule,
    GaussianThompsonModule,
    EpsilonGreedyModule,
    SoftmaxModule,
]


def random(seed: int = 0) -> numpy.random.Generator:
    return numpy.random.default_rng(seed)


def taught(one: ArmCounts) -> ArmCounts:
    """Arm 0 earned 1, 1, 0, 0; arm 1 earned 1, 1; arm 2 was never chosen."""
    one.update([0, 0, 0, 0, 1, 1], [1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    return one


def test_counts_and_means_are_those_of_the_rows() -> None:
    one = taught(UCB1Module(3))
    assert one.counts().tolist() == [4, 2, 0]
    assert one.means().tolist() == [0.5, 1.0, 0.0]
    # A row of weight 2 counts as two rows.
    one.update([2, 0], [0.5, 1.0], [2.0, 0.0])
    assert one.counts().tolist() == [4, 2, 2]
    assert one.means().tolist() == [0.5, 1.0, 0.5]


def test_ucb1_adds_the_root_of_2_ln_t_over_n() -> None:
    one = taught(UCB1Module(3, UCB1Config(alpha=1.0)))
    bounds = one.scores(1, random())
    assert bounds[:2] == pytest.approx(
        [0.5 + math.sqrt(2 * math.log(6) / 4), 1.0 + math.sqrt(2 * math.log(6) / 2)]
    )
    assert bounds[2] == math.inf
    half = taught(UCB1Module(3, UCB1Config(alpha=0.5))).scores(1, random())
    assert half[0] == pytest.approx(0.5 + 0.5 * math.sqrt(math.log(6) / 2))


def test_metric_ucb_has_a_width_that_shrinks_with_the_mean() -> None:
    one = taught(MetricUCBModule(3))
    one.update([2] * 2, [0.0, 0.0])
    # t = 8: ln 8 / 4 for arm 0, ln 8 / 2 for arms 1 and 2.
    four, two = math.log(8) / 4, math.log(8) / 2
    assert one.scores(1, random()) == pytest.approx(
        [0.5 + math.sqrt(0.5 * four) + four, 1.0 + math.sqrt(two) + two, two]
    )


def test_a_beta_posterior_has_the_mean_and_variance_of_its_counts() -> None:
    one = taught(BetaThompsonModule(3))
    draws = one.scores(20_000, random())
    # Beta(3, 3), Beta(3, 1), Beta(1, 1): mean a / (a + b), variance ab / (a + b)² (a + b + 1).
    assert draws.mean(0) == pytest.approx([1 / 2, 3 / 4, 1 / 2], abs=0.01)
    assert draws.var(0) == pytest.approx([1 / 28, 3 / 80, 1 / 12], abs=0.002)


def test_a_gaussian_posterior_weighs_prior_and_rewards_by_their_precision() -> None:
    options = ThompsonConfig(distribution="gaussian", reward_std=0.5, prior_mean=0.2, prior_std=0.5)
    one = GaussianThompsonModule(3, options)
    taught(one)
    mean, deviation = one.posterior()
    # Precisions 4 + 4 n: (0.8 + 4 Σr) / (4 + 4 n).
    assert mean == pytest.approx([8.8 / 20, 8.8 / 12, 0.2])
    assert deviation == pytest.approx([20**-0.5, 12**-0.5, 0.5])
    draws = one.scores(20_000, random())
    assert draws.mean(0) == pytest.approx(mean, abs=0.02)
    assert draws.std(0) == pytest.approx(deviation, abs=0.02)


def test_epsilon_greedy_chooses_any_arm_with_probability_epsilon() -> None:
    one = taught(EpsilonGreedyModule(3, EpsilonGreedyConfig(epsilon=0.3)))
    shares = numpy.bincount(one.choose(30_000, random()), minlength=3) / 30_000
    # Four standard deviations are at most 0.012.
    assert shares == pytest.approx([0.1, 0.8, 0.1], abs=0.012)


def test_softmax_chooses_by_the_exponential_of_the_mean() -> None:
    one = taught(SoftmaxModule(3, SoftmaxConfig(temperature=0.5)))
    shares = numpy.bincount(one.choose(30_000, random()), minlength=3) / 30_000
    weights = numpy.exp([1.0, 2.0, 0.0])
    assert shares == pytest.approx(weights / weights.sum(), abs=0.012)
    mask = numpy.tile([True, False, True], (30_000, 1))
    masked = numpy.bincount(one.choose(30_000, random(), mask), minlength=3) / 30_000
    assert masked == pytest.approx([math.e / (math.e + 1), 0.0, 1 / (math.e + 1)], abs=0.012)


def test_a_high_initial_value_tries_every_arm_first() -> None:
    options = EpsilonGreedyConfig(epsilon=0.0, initial_value=5.0)
    one = EpsilonGreedyModule(3, options)
    for _ in range(3):
        one.update(one.choose(1, random()), [1.0])
    assert one.counts().tolist() == [1, 1, 1]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_tries_arms_that_are_alike_equally_often(rule: Any) -> None:
    counts = numpy.bincount(rule(4).choose(4_000, random()), minlength=4)
    # Four standard deviations of a fair draw are 110.
    assert abs(counts - 1_000).max() < 110


@pytest.mark.parametrize("rule", RULES)
def test_absent_arms_are_never_chosen_and_inference_is_greedy(rule: Any) -> None:
    one, mask = taught(rule(3)), random().random((300, 3)) < 0.5
    mask[:, 2] = True
    act = ActInput(numpy.zeros(300), action_mask=torch.from_numpy(mask), random=random())
    chosen = one.forward_exploration(act).actions
    assert mask[range(300), chosen].all()
    greedy = one.forward_inference(act).actions
    means = numpy.where(mask, one.means(), -1.0)
    assert greedy.tolist() == means.argmax(1).tolist()
    mask[7] = False
    act.action_mask = mask
    with pytest.raises(RunFailedError, match="mask of row 7 allows no arm"):
        one.forward_exploration(act)
    with pytest.raises(RunFailedError, match="mask of row 7 allows no arm"):
        one.action_probabilities(act)


@pytest.mark.parametrize(
    ("rule", "rows", "complaint"),
    [
        (UCB1Module, ([0, 0.9], [1, 1]), r"arm 0\.9 of row 1 is no whole number"),
        (UCB1Module, ([0, 3], [1, 1]), "the arm of row 1 is 3, UCB1Module takes 0 to 2"),
        (UCB1Module, ([0, -1], [1, 1]), "the arm of row 1 is -1"),
        (UCB1Module, ([0], [math.nan]), "the reward of row 0 is nan, UCB1Module takes a finite"),
        (UCB1Module, ([0], [1, 1]), "2 rewards were given for 1 arms"),
        (UCB1Module, ([0], [1], [-1]), "the weight of row 0 is -1.0"),
        (SoftmaxModule, ([0, 0], [1e308, 1e308]), "too large to be summed"),
        (UCB1Module, ([0], ["much"]), "rewards must be real numbers"),
        (BetaThompsonModule, ([0], [1.5]), r"reward of row 0 is 1\.5, .* takes 0 to 1"),
        (MetricUCBModule, ([0], [-0.5]), r"reward of row 0 is -0\.5, .* takes 0 to inf"),
    ],
)
def test_rows_that_a_rule_is_not_made_for_are_refused(rule: Any, rows: Any, complaint: str) -> None:
    one = rule(3)
    with pytest.raises(RunFailedError, match=complaint):
        one.update(*rows)
    assert one.counts().tolist() == [0, 0, 0]


@pytest.mark.parametrize("rule", RULES)
def test_all_that_it_knows_is_in_its_state(rule: Any) -> None:
    one, two = taught(rule(3)), rule(3)
    two.load_state_dict(one.state_dict())
    assert two.scores(5, random()).tolist() == one.scores(5, random()).tolist()


@pytest.mark.parametrize("rule", RULES)
def test_sums_are_exact_whatever_a_module_is_moved_to(rule: Any) -> None:
    one = rule(2).half()
    one.update(numpy.zeros(3000, int), numpy.ones(3000))
    one.update([0], [1.0])
    assert one.counts().tolist() == [3001, 0]
    counts = one.counts()
    counts[0] = 7
    assert one.counts().tolist() == [3001, 0]


def test_sums_of_rewards_that_a_rule_does_not_take_are_not_loaded() -> None:
    one, other = BetaThompsonModule(2), GaussianThompsonModule(2)
    other.update([0, 1], [-3.0, 2.0])
    with pytest.raises(RequestError, match="arm 0 sum up to -3"):
        one.load_state_dict(other.state_dict())
    assert one.counts().tolist() == [0, 0]


def test_columns_of_tensors_and_of_one_value_per_row_are_learned() -> None:
    one = UCB1Module(3)
    rewards = torch.tensor([1.0, 0.5]).bfloat16().requires_grad_()
    one.update(torch.tensor([0, 1]), rewards, [[1.0], [2.0]])
    assert (one.counts().tolist(), one.means().tolist()) == ([1, 2, 0], [1, 0.5, 0])


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 3), (2, 4), (2, 1)])
def test_masks_of_other_rows_or_arms_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RunFailedError, match=r"must have the shape \(2, 3\), .* found \("):
        UCB1Module(3).choose(2, random(), numpy.ones(shape))


# -- learning --------------------------------------------------------------------------------------


STEPS = 2_000


def regret(algorithm: str, **options: Any) -> float:
    """The mean regret per step of a seeded run, over all steps."""
    made: list[Any] = []

    class Regret(gymnasium.Wrapper[Any, Any, Any, Any]):
        total = 0.0

        def step(self, action: Any) -> Any:
            outcome = self.env.step(action)
            self.total += outcome[-1]["regret"]
            return outcome

    def make() -> Any:
        made.append(Regret(gymnasium.make("MultiArmedBandit-v0", problem_seed=3)))
        return made[-1]

    given = {"tracking.enabled": False, **options}
    rlplug.run(algorithm, make, steps=STEPS, seed=0, options=given)
    return max(one.total for one in made) / STEPS


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("algorithm", "options", "most"),
    [
        ("ucb1", {}, 0.5),
        ("metric-ucb", {}, 0.6),
        ("thompson", {}, 0.2),
        ("thompson", {"distribution": "gaussian", "reward_std": 0.5}, 0.2),
        ("epsilon-greedy", {}, 0.4),
        ("softmax", {}, 0.4),
    ],
)
def test_it_loses_less_than_a_random_choice(
    algorithm: str, options: dict[str, Any], most: float
) -> None:
    means = rlplug.bandits.MultiArmedBandit(problem_seed=3).start(3).means
    at_random = float(means.max() - means.mean())
    assert regret(algorithm, **options) < most * at_random


@pytest.mark.parametrize(
    ("observations", "actions", "reason"),
    [
        (spaces.Discrete(1), spaces.Box(-1, 1, (2,)), "needs Discrete actions"),
        (spaces.Discrete(1), spaces.Discrete(3, start=1), "counts arms from 0"),
        (spaces.Discrete(1), spaces.Discrete(1), "needs two arms"),
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(3), "in a bandit, ignore_context = true"),
        (spaces.Discrete(2), spaces.Discrete(3), "observations are Discrete with 2 values"),
    ],
)
def test_what_cannot_be_handled_is_refused_with_the_reason(
    observations: Any, actions: Any, reason: str
) -> None:
    said = UCB1(UCB1Config()).supports(observations, actions)
    assert said is not None
    assert reason in said


def test_observations_without_features_are_supported_and_others_where_it_is_asked_for() -> None:
    mask = spaces.Dict(action_mask=spaces.MultiBinary(3))
    for space in (spaces.Discrete(1), spaces.Box(-1, 1, (0,)), mask):
        assert UCB1(UCB1Config()).supports(space, spaces.Discrete(3)) is None
    ignoring = UCB1(UCB1Config(ignore_context=True))
    assert ignoring.supports(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)) is None
    assert BanditOptions().ignore_context is False
