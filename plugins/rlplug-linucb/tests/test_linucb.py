"""LinUCB and LinTS: the regressions they claim to be, how they choose, learn and are run."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy
import pytest
import sklearn.linear_model
import torch
from gymnasium import spaces
from rlplug_linucb import (
    Layout,
    LinTSConfig,
    LinTSModule,
    LinUCB,
    LinUCBConfig,
    LinUCBModule,
    NeuralLinUCBConfig,
)
from rlplug_linucb.ridge import Ridge
from sklearn.datasets import load_digits

import rlplug
from rlplug import ActInput, Batch, build_learner
from rlplug.bandits import BanditBatch
from rlplug.config.strict import structure
from rlplug.errors import RunFailedError

# -- ridge -----------------------------------------------------------------------------------------


def learned(rows: int, dim: int, *, scale: float = 0.0, **options: Any) -> Ridge:
    """A single regression after rows whose features differ by up to 10^scale in size."""
    ridge = Ridge(1, dim, LinUCBConfig(**options))
    random = numpy.random.default_rng(0)
    for row in random.standard_normal((rows, dim)) * numpy.logspace(0, scale, dim):
        ridge.learn(0, row, numpy.array([row.sum()]))
    return ridge


def test_coefficients_equal_scikit_learns_ridge() -> None:
    random = numpy.random.default_rng(1)
    x, y, weight = random.standard_normal((40, 5)), random.standard_normal(40), random.random(40)
    ridge = Ridge(1, 5, LinUCBConfig(l2_lambda=2.5))
    for row, label, w in zip(x, y, weight, strict=True):
        ridge.learn(0, row, label[None], w)
    theirs = sklearn.linear_model.Ridge(alpha=2.5, fit_intercept=False)
    theirs.fit(x, y, sample_weight=weight)
    assert ridge.theta[0, 0] == pytest.approx(theirs.coef_, abs=1e-12)


@pytest.mark.parametrize("l2_lambda", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("scale", [0.0, 2.0, 4.0])
def test_variances_stay_within_a_hundred_millionth_of_the_exact_ones(
    l2_lambda: float, scale: float
) -> None:
    ridge = learned(3_000, 12, scale=scale, l2_lambda=l2_lambda)
    rows = numpy.random.default_rng(2).standard_normal((50, 12)) * numpy.logspace(0, scale, 12)
    matrix = ridge.A[0] + l2_lambda * numpy.eye(12)
    # Scaling rows and columns to unit diagonal keeps the reference accurate.
    size = numpy.sqrt(matrix.diagonal())
    inverse = numpy.linalg.inv(matrix / numpy.outer(size, size)) / numpy.outer(size, size)
    means, variances = ridge.predict_all(rows)
    expected = numpy.einsum("nd,de,ne->n", rows, inverse, rows)
    assert variances[:, 0] == pytest.approx(expected, rel=1e-8)
    theta = inverse @ ridge.b[0, 0]
    assert means[:, 0, 0] == pytest.approx(rows @ theta, rel=1e-8, abs=1e-8)


def test_inverses_are_solved_anew_as_often_as_refresh_every_says() -> None:
    ridge = learned(30, 3, refresh_every=10)
    ridge.predict_all(numpy.ones((1, 3)))
    assert ridge.solutions.tolist() == [1, 0]
    assert ridge.age.tolist() == [0]


def test_without_a_penalty_directions_without_data_have_neither_reward_nor_variance() -> None:
    ridge = Ridge(1, 3, LinUCBConfig(l2_lambda=0.0))
    for _ in range(4):
        ridge.learn(0, numpy.array([2.0, 0.0, 0.0]), numpy.array([6.0]))
    means, variances = ridge.predict_all(numpy.eye(3))
    assert means[:, 0, 0] == pytest.approx([3.0, 0.0, 0.0])
    assert variances[:, 0] == pytest.approx([1 / 16, 0.0, 0.0])
    assert ridge.solutions.tolist() == [1, 1]


def continued(ridge: Ridge) -> list[float]:
    """What is predicted after one more row: it shows whether arrays still share memory."""
    ridge.learn(0, numpy.array([1.0, 0.0, 2.0]), numpy.array([3.0]))
    means, variances = ridge.predict_all(numpy.eye(3))
    return [*means[:, 0, 0].tolist(), *variances[:, 0].tolist()]


def test_copies_and_loaded_states_learn_on_exactly_where_the_original_stood() -> None:
    ridge, file = learned(70, 3), io.BytesIO()
    torch.save(ridge.state_dict(), file)
    file.seek(0)
    fresh = [Ridge(1, 3, LinUCBConfig()) for _ in range(2)]
    fresh[0].load_state_dict(torch.load(file, weights_only=True))
    fresh[1].load_state_dict(copy.deepcopy(ridge.state_dict()), assign=True)
    copies = [copy.deepcopy(ridge), pickle.loads(pickle.dumps(ridge)), *fresh]
    expected = continued(ridge)
    for other in copies:
        assert continued(other) == expected
        for name, buffer in other.state_dict().items():
            assert torch.equal(buffer, ridge.state_dict()[name]), name


# -- rows ------------------------------------------------------------------------------------------


FIXED = Layout(num_arms=3, context_dim=4)
FEATURED = Layout(num_arms=3, context_dim=4, arm_dim=2)
ARMS_ALONE = Layout(num_arms=3, arm_dim=2)
NOTHING = Layout(num_arms=3)
ROWS = 80


def observations(layout: Layout, count: int, seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    parts = {"context": random.standard_normal((count, layout.context_dim))}
    if layout.arm_dim:
        parts["arms"] = random.standard_normal((count, layout.num_arms, layout.arm_dim))
    return {name: part.astype(numpy.float32) for name, part in parts.items() if part.size} or {
        "action_mask": numpy.ones((count, 3), bool)
    }


def kron(left: Any, right: Any) -> Any:
    """The product of every feature of one with every feature of the other, row by row."""
    return numpy.einsum("ni,nj->nij", left, right).reshape(len(left), -1)


def rows_of(model: str, layout: Layout, seen: dict[str, Any], arms: Any, interact: bool) -> Any:
    """The rows of one ridge regression that is the whole model."""
    one_hot = numpy.eye(3)[arms]
    context = seen.get("context", numpy.ones((len(arms), 1))).astype(float)
    if model == "disjoint":
        return kron(one_hot, context)
    shared = one_hot
    if layout.arm_dim:
        shared = seen["arms"][numpy.arange(len(arms)), arms].astype(float)
    if model == "joint" and not layout.context_dim:
        return shared
    if model == "joint" and not interact:
        return numpy.hstack([context, shared])
    if model == "joint" and not layout.arm_dim:
        return kron(context, shared)
    if layout.arm_dim and interact and layout.context_dim:
        shared = numpy.hstack([shared, kron(context, shared)])
    if model == "joint":
        return shared
    return numpy.hstack([shared if layout.arm_dim else context, kron(one_hot, context)])


MODELS = [
    ("disjoint", FIXED, {}),
    ("disjoint", NOTHING, {}),
    ("joint", FIXED, {}),
    ("joint", FIXED, {"use_interaction_features": False}),
    ("joint", FEATURED, {}),
    ("joint", FEATURED, {"use_interaction_features": False}),
    ("joint", ARMS_ALONE, {}),
    ("hybrid", FIXED, {}),
    ("hybrid", NOTHING, {}),
    ("hybrid", FEATURED, {}),
    ("hybrid", FEATURED, {"use_interaction_features": False}),
    ("hybrid", ARMS_ALONE, {}),
]


def taught(
    layout: Layout, sizes: list[int], weights: Any, **options: Any
) -> tuple[LinUCBModule, dict[str, Any], Any, Any]:
    """A module that has learned rows of chance in batches of these sizes, and the rows."""
    module = LinUCBModule(layout, LinUCBConfig(**options))
    seen, random = observations(layout, ROWS), numpy.random.default_rng(1)
    arms, rewards = random.integers(0, 3, ROWS), random.standard_normal(ROWS)
    for step in numpy.split(numpy.arange(ROWS), numpy.cumsum(sizes)[:-1]):
        part = {name: column[step] for name, column in seen.items()}
        module.update(part, arms[step], rewards[step], None if weights is None else weights[step])
    return module, seen, arms, rewards


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("discount", [1.0, 0.95])
@pytest.mark.parametrize("sizes", [[1] * ROWS, [ROWS], [1, 2, 40, 37]], ids=len)
@pytest.mark.parametrize(("model", "layout", "options"), MODELS, ids=str)
def test_a_model_is_one_ridge_regression_on_its_rows(
    model: str, layout: Layout, options: Any, sizes: list[int], discount: float, weighted: bool
) -> None:
    weights = numpy.random.default_rng(3).random(ROWS) if weighted else None
    options = {"model": model, "l2_lambda": 0.5, **options}
    module, seen, arms, rewards = taught(layout, sizes, weights, discount=discount, **options)
    interact = options.get("use_interaction_features", True)
    x = rows_of(model, layout, seen, arms, interact)
    counted = discount ** numpy.arange(ROWS)[::-1] * (1.0 if weights is None else weights)
    inverse = numpy.linalg.inv((x.T * counted) @ x + 0.5 * numpy.eye(x.shape[1]))
    theta = inverse @ (x.T @ (counted * rewards))
    probes = observations(layout, 6, seed=5)
    scores = module.score(probes, alpha=2.0)
    for arm in range(3):
        rows = rows_of(model, layout, probes, numpy.full(6, arm), interact)
        sigma = numpy.sqrt(((rows @ inverse) * rows).sum(1))
        assert scores.pred_label[:, arm] == pytest.approx(rows @ theta, abs=1e-9)
        assert scores.pred_sigma[:, arm] == pytest.approx(sigma, abs=1e-9)
        assert scores.ucb[:, arm] == pytest.approx(rows @ theta + 2.0 * sigma, abs=1e-9)
    tensors = {name: torch.from_numpy(part) for name, part in probes.items()}
    exported = module.forward_export(ActInput(tensors)).actions
    assert exported.tolist() == module.forward_inference(ActInput(probes)).actions.tolist()


def test_estimates_are_those_of_the_paper_for_each_arm_or_for_all() -> None:
    module, seen, arms, rewards = taught(FIXED, [ROWS], None)
    x = seen["context"][arms == 1].astype(float)
    A, b, A_inv, theta = (array[1] for array in module.estimates())
    assert pytest.approx(x.T @ x) == A
    assert b == pytest.approx(x.T @ rewards[arms == 1])
    assert A_inv == pytest.approx(numpy.linalg.inv(A + numpy.eye(4)))
    assert theta == pytest.approx(A_inv @ b)
    module.estimates().theta[:] = 0.0
    assert module.estimates().theta[1] == pytest.approx(theta)
    assert taught(ARMS_ALONE, [ROWS], None)[0].estimates().theta.shape == (2,)


@pytest.mark.parametrize("model", ["disjoint", "hybrid"])
def test_arms_that_come_and_go_leave_what_others_know(model: str) -> None:
    module, seen, arms, rewards = taught(FIXED, [ROWS], None, model=model)
    rest = arms != 1
    alone = LinUCBModule(FIXED, LinUCBConfig(model=model))
    alone.update(seen["context"][rest], arms[rest], rewards[rest])
    expected = alone.score(seen).ucb
    assert module.add_arm() == 3
    module.remove_arm(1)
    scores = module.score(seen)
    if model == "disjoint":
        assert scores.ucb[:, :2] == pytest.approx(expected[:, [0, 2]])
        assert scores.ucb[:, 2] == pytest.approx(numpy.linalg.norm(seen["context"], axis=1))
    assert module.add_arm() == 3
    module.update(seen["context"][:1], numpy.array([3]), numpy.array([9.0]))
    assert module.score(seen).pred_label.shape == (ROWS, 4)


def test_arms_have_names_that_a_saved_state_brings_along() -> None:
    module = LinUCBModule(Layout(num_arms=2, context_dim=1, arm_names=("a", "b")))
    module.update(numpy.ones((3, 1)), ["b", "a", "b"], numpy.array([1.0, 0.0, 1.0]))
    assert module.add_arm("c") == 2
    module.remove_arm("a")
    assert module.layout.arm_names == ("b", "c")
    other = LinUCBModule(Layout(num_arms=2, context_dim=1, arm_names=("x", "y")))
    other.load_state_dict(module.state_dict())
    assert other.layout.arm_names == ("b", "c")
    assert other.score(numpy.ones((1, 1))).pred_label.tolist() == [[pytest.approx(2 / 3), 0.0]]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda module: module.add_arm("a"), "'a'"),
        (lambda module: module.add_arm(), "''"),
        (lambda module: module.remove_arm("z"), "'z'"),
        (lambda module: module.remove_arm(7), "7"),
        (lambda module: module.update(numpy.ones((1, 1)), ["z"], numpy.ones(1)), "'z'"),
    ],
)
def test_arms_that_there_are_not_are_refused_by_name(call: Any, named: str) -> None:
    module = LinUCBModule(Layout(num_arms=3, context_dim=1, arm_names=("a", "b", "c")))
    with pytest.raises(RunFailedError, match=named):
        call(module)


CONTEXT, ARMS = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (4, 2))
MASK, FOUR = spaces.MultiBinary(4), spaces.Discrete(4)


@pytest.mark.parametrize(
    ("space", "actions", "options", "named"),
    [
        (CONTEXT, CONTEXT, {}, "Discrete"),
        (CONTEXT, spaces.Discrete(1), {}, "two arms"),
        (CONTEXT, spaces.Discrete(4, start=1), {}, "from 0"),
        (spaces.Discrete(3), FOUR, {}, "context"),
        (spaces.Box(-1, 1, (2, 2)), FOUR, {}, "context"),
        (spaces.Dict(image=CONTEXT), FOUR, {}, "image"),
        (spaces.Dict(context=CONTEXT, arm_ids=MASK), FOUR, {}, "arm_ids"),
        (spaces.Dict(arms=spaces.Box(-1, 1, (3, 2))), FOUR, {}, "arms"),
        (spaces.Dict(arms=ARMS), FOUR, {"model": "disjoint"}, "disjoint"),
        (CONTEXT, FOUR, {"use_interaction_features": False}, "interaction"),
    ],
)
def test_spaces_of_no_linear_bandit_are_refused_by_what_is_wrong(
    space: spaces.Space[Any], actions: spaces.Space[Any], options: Any, named: str
) -> None:
    assert named in str(LinUCB(LinUCBConfig(**options)).supports(space, actions))


# -- module ----------------------------------------------------------------------------------------


FOUR_ARMS = Layout(num_arms=4, context_dim=3)
FOUR_FEATURED = Layout(num_arms=4, context_dim=3, arm_dim=2)
ALONE = Layout(num_arms=4, arm_dim=2)
LAYOUTS = [FOUR_ARMS, FOUR_FEATURED, ALONE]
KINDS = [(LinUCBModule, LinUCBConfig), (LinTSModule, LinTSConfig)]


def drawn(layout: Layout, count: int, seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    parts = {"context": random.standard_normal((count, 3))} if layout.context_dim else {}
    if layout.arm_dim:
        parts["arms"] = random.standard_normal((count, 4, layout.arm_dim))
    return parts


def made(layout: Layout = FOUR_ARMS, kind: Any = LinUCBModule, **options: Any) -> Any:
    """A module that has learned 30 rows of chance."""
    module = kind(layout, dict(KINDS)[kind](**options))
    random = numpy.random.default_rng(3)
    rewards = random.standard_normal(30)
    module.update(drawn(layout, 30), random.integers(0, 4, 30), rewards)
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
    module, seen = made(layout, kind), drawn(layout, count, seed=1)
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
        module, seen = (made(FOUR_ARMS, kind, **options), drawn(FOUR_ARMS, 40, seed=1))
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
    module, random = LinUCBModule(FOUR_ARMS), numpy.random.default_rng(0)
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
    module, seen = made(layout, kind), drawn(layout, count)
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
    one, two = LinUCBModule(FOUR_FEATURED), LinUCBModule(FOUR_FEATURED)
    seen, arms = drawn(FOUR_FEATURED, count), numpy.ones(count, dtype=int)
    two.update(seen, arms, numpy.ones(count))
    seen["arms"][:, 0] = numpy.nan
    one.update(seen, arms, numpy.ones(count))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name])


SEEN = drawn(FOUR_ARMS, 40)["context"]
BAD = numpy.where(numpy.arange(40)[:, None] == 1, numpy.nan, SEEN)
REWARDS = numpy.ones(40)
CHOSEN = numpy.zeros(40, int)
AT_1 = numpy.arange(40) == 1


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ((BAD, CHOSEN, REWARDS), "row 1"),
        ((SEEN, CHOSEN, numpy.where(AT_1, numpy.inf, 1.0)), "rewards of row 1"),
        ((SEEN, CHOSEN, REWARDS, numpy.where(AT_1, -1.0, 1.0)), "weights of row 1"),
        ((SEEN, CHOSEN, REWARDS, numpy.where(AT_1, numpy.nan, 1.0)), "weights of row 1"),
        ((SEEN, CHOSEN - AT_1, REWARDS), "arms of row 1"),
        ((SEEN, CHOSEN + 4 * AT_1, REWARDS), "arms of row 1"),
        ((SEEN, CHOSEN + 0.5 * AT_1, REWARDS), "0.5"),
        ((SEEN * 1e200, CHOSEN, REWARDS), "too large"),
    ],
)
def test_what_cannot_be_learned_is_refused_by_its_row_and_changes_nothing(
    columns: tuple[Any, ...], named: str, count: int
) -> None:
    module, before = made(), made().state_dict()
    with numpy.errstate(all="ignore"), pytest.raises(RunFailedError, match=named):
        module.update(*(column[:count] for column in columns))
    with pytest.raises(RunFailedError, match="rows"):
        module.update(SEEN[:count], CHOSEN[:count], REWARDS[: count - 1])
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("count", [1, 9])
def test_what_cannot_be_chosen_by_is_refused(count: int) -> None:
    seen = drawn(FOUR_ARMS, count)["context"]
    seen[-1, 1] = numpy.nan
    for kind in (LinUCBModule, LinTSModule):
        with pytest.raises(RunFailedError, match=f"row {count - 1}"):
            made(FOUR_ARMS, kind).forward_exploration(act(seen))
    mask = numpy.zeros((count, 4), bool)
    with pytest.raises(RunFailedError, match="allows no arm"):
        made().forward_exploration(act(drawn(FOUR_ARMS, count), mask))


def test_a_bandit_batch_is_learned_by_its_label_with_its_effective_weight() -> None:
    one, two = LinUCBModule(FOUR_FEATURED), LinUCBModule(FOUR_FEATURED)
    seen = drawn(FOUR_FEATURED, 5)
    columns = {"actions": numpy.arange(5) % 4, "rewards": numpy.zeros(5), "label": numpy.ones(5)}
    weights = {"weights": numpy.full(5, 2.0), "importance_weight": numpy.full(5, 1.5)}
    one.learn(BanditBatch(**seen, **columns, **weights))
    two.update(seen, columns["actions"], numpy.ones(5), numpy.full(5, 3.0))
    assert one.score(seen).ucb.tolist() == two.score(seen).ucb.tolist()


def test_discounting_all_data_is_forgetting_part_of_it() -> None:
    module, known = made(), made().estimates()
    module.discount_(0.5)
    assert pytest.approx(0.5 * known.A) == module.estimates().A
    module.discount_(0.0)
    assert not module.estimates().theta.any()


@pytest.mark.parametrize("model", ["disjoint", "joint", "hybrid"])
def test_draws_have_the_mean_and_the_deviation_that_are_told_with_them(model: str) -> None:
    module = made(FOUR_ARMS, LinTSModule, v=0.5, model=model)
    seen = drawn(FOUR_ARMS, 1, seed=5)["context"]
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
        ("disjoint", FOUR_ARMS, 0.0),
        # Nothing is known: x (beta + theta_arm), two draws of variance 1, of which arms share one.
        ("hybrid", FOUR_ARMS, 0.5),
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


# -- algorithm -------------------------------------------------------------------------------------


CONTEXTS = spaces.Box(-1, 1, (3,), numpy.float64)
FOUR_ACTIONS = spaces.Discrete(4)


def experience(module: Any, count: int, seed: int = 0, **columns: Any) -> Batch:
    """What a sampler would hand on: contexts, the arms that were chosen, rewards and extras."""
    random = numpy.random.default_rng(seed)
    context = random.uniform(-1, 1, (count, 3))
    acted = module.forward_exploration(ActInput(context, random=random))
    rewards = random.standard_normal(count)
    given = {"observations": context, "actions": acted.actions, "rewards": rewards}
    return Batch({**given, **acted.extras, **columns})


@pytest.mark.parametrize("name", ["linucb", "lints"])
@pytest.mark.parametrize("count", [1, 200])
def test_an_update_learns_the_batch_and_reports_the_errors_made_before_it(
    name: str, count: int
) -> None:
    learner = build_learner(name, CONTEXTS, FOUR_ACTIONS)
    module: Any = learner.modules["default"]
    batch = experience(module, count)
    expected = LinUCBModule(module.layout)
    expected.update(batch.array("observations"), batch.array("actions"), batch.array("rewards"))
    metrics = learner.update({"default": batch}, timestep=count)["default"]
    for mine, other in zip(module.estimates(), expected.estimates(), strict=True):
        assert mine == pytest.approx(other, abs=1e-12)
    # Nothing was known: the prediction was 0, and a context x had the deviation |x|.
    assert metrics["progressive_error"] == pytest.approx((batch.array("rewards") ** 2).mean())
    lengths = numpy.linalg.norm(batch.array("observations"), axis=1)
    assert metrics["sigma"] == pytest.approx(lengths.mean())
    if name == "linucb":
        assert metrics["ucb"] == pytest.approx(lengths.mean())
    else:
        assert metrics["sampled"] == pytest.approx(batch.array("sampled").mean())
    assert metrics["predicted"] == metrics["pseudo_inverted"] == 0


def test_labels_win_over_rewards_and_weights_are_multiplied() -> None:
    learner = build_learner("linucb", CONTEXTS, FOUR_ACTIONS)
    module: Any = learner.modules["default"]
    two, half = numpy.full(5, 2.0), numpy.full(5, 1.5)
    batch = experience(module, 5, label=numpy.ones(5), weights=two, importance_weight=half)
    expected = LinUCBModule(module.layout)
    seen, actions = batch.array("observations"), batch.array("actions")
    expected.update(seen, actions, numpy.ones(5), numpy.full(5, 3.0))
    learner.update({"default": batch}, timestep=5)
    assert module.score(seen).ucb == pytest.approx(expected.score(seen).ucb, abs=1e-12)


def mean_reward(alpha: float, orders: int) -> float:
    """Over one pass through the digits, one decision and one update at a time."""
    x, labels = load_digits(return_X_y=True)
    size = x.std(0)
    x = numpy.hstack([(x - x.mean(0)) / numpy.where(size > 0, size, 1.0), numpy.ones((len(x), 1))])
    x /= numpy.linalg.norm(x, axis=1, keepdims=True)
    rewards = []
    for seed in range(orders):
        random = numpy.random.default_rng(seed)
        config = LinUCBConfig(alpha=alpha)
        module = LinUCB(config).build(spaces.Box(-1, 1, (65,)), spaces.Discrete(10), config)
        for row in random.permutation(len(x)):
            arms = module.choose(x[row : row + 1], random)
            earned = (arms == labels[row]).astype(numpy.float64)
            module.update(x[row : row + 1], arms, earned)
            rewards.append(earned[0])
    return float(numpy.mean(rewards))


def test_digits_earn_what_the_reference_earns_and_optimism_beats_greed() -> None:
    optimistic, greedy = mean_reward(1.0, 20), mean_reward(0.0, 5)
    assert optimistic == pytest.approx(0.855, abs=0.012)
    assert optimistic > greedy + 0.1
    assert greedy > 0.5


@pytest.mark.usefixtures("home")
def test_a_run_without_a_context_finds_the_best_arm() -> None:
    options = {"tracking.enabled": False}
    result = rlplug.run("linucb", "MultiArmedBandit-v0", steps=600, options=options)
    estimates = result.module.estimates()  # type: ignore[operator] # a method of this module
    assert estimates.A[:, 0, 0].argmax() == estimates.theta[:, 0].argmax()


@pytest.mark.parametrize(
    ("kind", "values", "complaint"),
    [
        (LinUCBConfig, {"alpha": -1}, "at least 0"),
        (LinUCBConfig, {"l2_lambda": -1}, "at least 0"),
        (LinUCBConfig, {"discount": 1.5}, "at most 1"),
        (LinUCBConfig, {"discount": 0}, "greater than 0"),
        (LinUCBConfig, {"model": "joined"}, "'joint'"),
        (LinUCBConfig, {"refresh_every": 0}, "at least 1"),
        (LinUCBConfig, {"lamda": 1}, "unknown option"),
        (LinUCBConfig, {"model": "hybrid", "l2_lambda": 0}, "l2_lambda above 0"),
        (LinTSConfig, {"v": -1}, "at least 0"),
        (LinTSConfig, {"alpha": 1}, "unknown option"),
        (NeuralLinUCBConfig, {"net_arch": []}, "empty"),
        (NeuralLinUCBConfig, {"net_arch": [64, 0]}, "at least 1"),
        (NeuralLinUCBConfig, {"activation": "sine"}, "expected one of"),
        (NeuralLinUCBConfig, {"buffer_size": 0}, "at least 1"),
        (NeuralLinUCBConfig, {"discount": 0.9}, "unknown option"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(
    kind: type[Any], values: dict[str, Any], complaint: str
) -> None:
    config, problems = structure(kind, values, "algorithm")
    assert config is None
    assert complaint in problems[0].message
