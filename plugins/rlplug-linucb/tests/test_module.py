"""The modules alone: they choose, learn and are saved without anything around them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from rlplug_linucb import Layout, LinTSConfig, LinTSModule, LinUCBConfig, LinUCBModule

from rlplug import ActInput
from rlplug.bandits import BanditBatch
from rlplug.errors import RunFailedError

FIXED = Layout(num_arms=4, context_dim=3)
FEATURED = Layout(num_arms=4, context_dim=3, arm_dim=2)
ALONE = Layout(num_arms=4, arm_dim=2)
LAYOUTS = [FIXED, FEATURED, ALONE]
KINDS = [(LinUCBModule, LinUCBConfig), (LinTSModule, LinTSConfig)]


def observations(layout: Layout, count: int, seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    parts = {"context": random.standard_normal((count, 3))} if layout.context_dim else {}
    if layout.arm_dim:
        parts["arms"] = random.standard_normal((count, 4, layout.arm_dim))
    return parts


def taught(layout: Layout = FIXED, kind: Any = LinUCBModule, **options: Any) -> Any:
    """A module that has learned 30 rows of chance."""
    module = kind(layout, dict(KINDS)[kind](**options))
    random = numpy.random.default_rng(3)
    rewards = random.standard_normal(30)
    module.update(observations(layout, 30), random.integers(0, 4, 30), rewards)
    return module


def act(seen: Any, mask: Any = None, seed: int = 0, **more: Any) -> ActInput:
    random = numpy.random.default_rng(seed)
    return ActInput(seen, action_mask=mask, random=random, **more)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [LinUCBModule, LinTSModule])
@pytest.mark.parametrize("count", [1, 50])
def test_the_arm_of_the_highest_score_is_chosen_and_its_scores_are_told(
    layout: Layout, kind: Any, count: int
) -> None:
    module, seen = taught(layout, kind), observations(layout, count, seed=1)
    acted = module.forward_exploration(act(seen, seed=7))
    scores = module.score(seen, random=numpy.random.default_rng(7))
    assert acted.actions.tolist() == scores[2].argmax(1).tolist()
    rows = numpy.arange(count)
    for name, score in scores._asdict().items():
        assert acted.extras[name].tolist() == score[rows, acted.actions].tolist()
    chosen = module.choose(seen, numpy.random.default_rng(7))
    assert chosen.tolist() == acted.actions.tolist()


def test_inference_is_greedy_and_alpha_may_be_given_with_each_call() -> None:
    for kind, options in ((LinUCBModule, {"alpha": 50.0}), (LinTSModule, {"v": 50.0})):
        module, seen = taught(FIXED, kind, **options), observations(FIXED, 40, seed=1)
        best = module.forward_inference(act(seen)).actions.tolist()
        random = numpy.random.default_rng(0)
        assert best == module.score(seen, random=random).pred_label.argmax(1).tolist()
        assert best == module.choose(seen, random, alpha=0.0).tolist()
        assert best != module.choose(seen, random).tolist()
        half, whole = (
            module.score(seen, alpha, random=numpy.random.default_rng(1)) for alpha in (0.5, 1.0)
        )
        assert 2 * (half[2] - half[0]) == pytest.approx(whole[2] - whole[0])


@pytest.mark.parametrize("batch", [1, 400])
def test_arms_that_are_equally_good_are_chosen_equally_often(batch: int) -> None:
    module, random = LinUCBModule(FIXED), numpy.random.default_rng(0)
    counts = numpy.zeros(4)
    for _ in range(4_000 // batch):
        counts += numpy.bincount(module.choose(numpy.ones((batch, 3)), random), minlength=4)
    # Four standard deviations of a fair draw are 110.
    assert abs(counts - 1_000).max() < 110


@pytest.mark.parametrize("kind", [LinUCBModule, LinTSModule])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [1, 200])
def test_absent_arms_are_never_chosen_and_left_out_of_scores(
    kind: Any, layout: Layout, count: int
) -> None:
    module, seen = taught(layout, kind), observations(layout, count)
    mask = numpy.random.default_rng(1).random((count, 4)) < 0.5
    mask[:, 2] = True
    if layout.arm_dim:
        # What stands where there is no arm may be anything.
        seen["arms"][~mask] = numpy.nan
    beside = {**seen, "action_mask": mask.astype(numpy.int8)}
    for acted in (
        module.forward_exploration(act(seen, mask)),
        module.forward_inference(act(seen, mask)),
        module.forward_exploration(act(beside)),
    ):
        assert mask[numpy.arange(count), acted.actions].all()
    scores = module.score(beside, random=numpy.random.default_rng(0))
    for score, absent in zip(scores, (-numpy.inf, 0.0, -numpy.inf), strict=True):
        assert (score[~mask] == absent).all()
        assert numpy.isfinite(score[mask]).all()
    shares = module.action_probabilities(act(beside))
    assert (shares[~mask] == 0.0).all()
    assert shares.sum(1) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [1, 100])
def test_features_of_arms_that_were_not_chosen_are_not_learned_from(count: int) -> None:
    one, two = LinUCBModule(FEATURED), LinUCBModule(FEATURED)
    seen, arms = observations(FEATURED, count), numpy.ones(count, dtype=int)
    two.update(seen, arms, numpy.ones(count))
    seen["arms"][:, 0] = numpy.nan
    one.update(seen, arms, numpy.ones(count))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name])


SEEN = observations(FIXED, 40)["context"]
BAD = numpy.where(numpy.arange(40)[:, None] == 1, numpy.nan, SEEN)
REWARDS = numpy.ones(40)
ARMS = numpy.zeros(40, int)
AT_1 = numpy.arange(40) == 1


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ((BAD, ARMS, REWARDS), "row 1"),
        ((SEEN, ARMS, numpy.where(AT_1, numpy.inf, 1.0)), "rewards of row 1"),
        ((SEEN, ARMS, REWARDS, numpy.where(AT_1, -1.0, 1.0)), "weights of row 1"),
        ((SEEN, ARMS, REWARDS, numpy.where(AT_1, numpy.nan, 1.0)), "weights of row 1"),
        ((SEEN, ARMS - AT_1, REWARDS), "arms of row 1"),
        ((SEEN, ARMS + 4 * AT_1, REWARDS), "arms of row 1"),
        ((SEEN, ARMS + 0.5 * AT_1, REWARDS), "0.5"),
        ((SEEN * 1e200, ARMS, REWARDS), "too large"),
    ],
)
def test_what_cannot_be_learned_is_refused_by_its_row_and_changes_nothing(
    columns: tuple[Any, ...], named: str, count: int
) -> None:
    module, before = taught(), taught().state_dict()
    with numpy.errstate(all="ignore"), pytest.raises(RunFailedError, match=named):
        module.update(*(column[:count] for column in columns))
    with pytest.raises(RunFailedError, match="rows"):
        module.update(SEEN[:count], ARMS[:count], REWARDS[: count - 1])
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("count", [1, 9])
def test_what_cannot_be_chosen_by_is_refused(count: int) -> None:
    seen = observations(FIXED, count)["context"]
    seen[-1, 1] = numpy.nan
    for kind in (LinUCBModule, LinTSModule):
        with pytest.raises(RunFailedError, match=f"row {count - 1}"):
            taught(FIXED, kind).forward_exploration(act(seen))
    mask = numpy.zeros((count, 4), bool)
    with pytest.raises(RunFailedError, match="allows no arm"):
        taught().forward_exploration(act(observations(FIXED, count), mask))


def test_a_bandit_batch_is_learned_by_its_label_with_its_effective_weight() -> None:
    one, two = LinUCBModule(FEATURED), LinUCBModule(FEATURED)
    seen = observations(FEATURED, 5)
    columns = {"actions": numpy.arange(5) % 4, "rewards": numpy.zeros(5), "label": numpy.ones(5)}
    weights = {"weights": numpy.full(5, 2.0), "importance_weight": numpy.full(5, 1.5)}
    one.learn(BanditBatch(**seen, **columns, **weights))
    two.update(seen, columns["actions"], numpy.ones(5), numpy.full(5, 3.0))
    assert one.score(seen).ucb.tolist() == two.score(seen).ucb.tolist()


def test_discounting_all_data_is_forgetting_part_of_it() -> None:
    module, known = taught(), taught().estimates()
    module.discount_(0.5)
    assert pytest.approx(0.5 * known.A) == module.estimates().A
    module.discount_(0.0)
    assert not module.estimates().theta.any()


@pytest.mark.parametrize("model", ["disjoint", "joint", "hybrid"])
def test_draws_have_the_mean_and_the_deviation_that_are_told_with_them(model: str) -> None:
    module = taught(FIXED, LinTSModule, v=0.5, model=model)
    seen = observations(FIXED, 1, seed=5)["context"]
    draws = module.score(seen.repeat(20_000, 0), random=numpy.random.default_rng(0))
    mean, sigma = draws.pred_label[0], draws.pred_sigma[0]
    # Four standard errors of a mean of 20,000 are 0.03 deviations, those of a deviation 0.02.
    assert abs(draws.sampled.mean(0) - mean) == pytest.approx(0.0, abs=0.03 * 0.5 * sigma.max())
    assert draws.sampled.std(0) == pytest.approx(0.5 * sigma, rel=0.02)
    shares = module.action_probabilities(act(seen))[0]
    wins = numpy.bincount(draws.sampled.argmax(1), minlength=4) / 20_000
    assert shares == pytest.approx(wins, abs=0.05)
    acted = module.forward_exploration(act(seen, wants_log_prob=True))
    assert numpy.exp(acted.extras["log_prob"]) == pytest.approx(wins[acted.actions], abs=0.05)


@pytest.mark.parametrize(
    ("model", "layout", "expected"),
    [
        ("disjoint", FIXED, 0.0),
        # Nothing is known: x (beta + theta_arm), two draws of variance 1, of which arms share one.
        ("hybrid", FIXED, 0.5),
        # A draw of theta ~ N(0, I) for all arms; features (1, 0) and (1, 1) are 1/√2 correlated.
        ("joint", ALONE, 0.5**0.5),
    ],
)
def test_draws_of_arms_that_share_coefficients_are_correlated(
    model: Any, layout: Layout, expected: float
) -> None:
    module = LinTSModule(layout, LinTSConfig(model=model))
    seen: Any = numpy.array([[1.0, 0.0, 0.0]])
    if layout.arm_dim:
        seen = numpy.array([[[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]])
    draws = module.score(seen.repeat(20_000, 0), random=numpy.random.default_rng(0))
    assert numpy.corrcoef(draws.sampled.T)[0, 1] == pytest.approx(expected, abs=0.03)
