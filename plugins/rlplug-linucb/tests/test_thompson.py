"""LinTS draws what arms are worth from the posterior, and learns as LinUCB does."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces
from rlplug_linucb import Layout, LinTS, LinTSConfig, LinTSModule, LinUCBConfig, LinUCBModule
from rlplug_linucb.linucb import RidgeRegressions

from rlplug import ActInput, Batch
from rlplug.bandits import LinearBandit
from rlplug.config import Schedule
from rlplug.config.strict import structure
from rlplug.errors import RunFailedError
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.registry import Participant, describe

FIXED = Layout(num_arms=3, context_dim=2)
FEATURED = Layout(num_arms=3, context_dim=2, arm_dim=2)
MODELS: list[tuple[Layout, dict[str, Any]]] = [
    (FIXED, {}),
    (FIXED, {"model": "joint"}),
    (FIXED, {"model": "joint", "use_interaction_features": False}),
    (FIXED, {"model": "hybrid"}),
    (FIXED, {"discount": 0.9, "squared_discount": True}),
    (FIXED, {"model": "joint", "discount": 0.9, "squared_discount": True}),
    (FEATURED, {}),
    (FEATURED, {"model": "hybrid"}),
]


def seen(layout: Layout, count: int, seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    parts = {"context": random.standard_normal((count, layout.context_dim))}
    if layout.arm_dim:
        parts["arms"] = random.standard_normal((count, layout.num_arms, layout.arm_dim))
    return parts


def taught(layout: Layout = FIXED, **options: Any) -> LinTSModule:
    """A module that has learned 12 rows of chance: it knows little, and not alike of all arms."""
    one = LinTSModule(layout, LinTSConfig(**options))
    random = numpy.random.default_rng(3)
    one.update(seen(layout, 12), random.integers(0, 3, 12), random.standard_normal(12))
    return one


def act(observations: Any, mask: Any = None, seed: int = 0) -> ActInput:
    return ActInput(observations, action_mask=mask, random=numpy.random.default_rng(seed))


def repeated(one: dict[str, Any], count: int) -> dict[str, Any]:
    return {name: numpy.repeat(part, count, axis=0) for name, part in one.items()}


@pytest.mark.parametrize(("layout", "options"), MODELS, ids=str)
def test_draws_have_the_mean_and_the_deviation_that_are_told_with_them(
    layout: Layout, options: dict[str, Any]
) -> None:
    one = taught(layout, v=0.5, **options)
    context = seen(layout, 1, seed=5)
    draws = one.score(repeated(context, 20_000), numpy.random.default_rng(0))
    mean, sigma = draws.pred_label[0], draws.pred_sigma[0]
    # Four standard errors of a mean of 20,000 are 0.03 deviations, those of a deviation 0.02.
    assert abs(draws.sampled.mean(0) - mean) == pytest.approx(0.0, abs=0.03 * 0.5 * sigma.max())
    assert draws.sampled.std(0) == pytest.approx(0.5 * sigma, rel=0.02)
    random = numpy.random.default_rng(1)
    single = numpy.concatenate([one.score(context, random).sampled for _ in range(2_000)])
    assert abs(single.mean(0) - mean).max() < 0.1 * 0.5 * sigma.max()
    assert single.std(0) == pytest.approx(0.5 * sigma, rel=0.07)


def correlations(one: LinTSModule, context: dict[str, Any]) -> Any:
    draws = one.score(repeated(context, 20_000), numpy.random.default_rng(0))
    return numpy.corrcoef(draws.sampled.T)


def test_a_disjoint_model_draws_its_arms_apart() -> None:
    off_diagonal = correlations(taught(), seen(FIXED, 1, seed=5))[numpy.triu_indices(3, 1)]
    assert abs(off_diagonal).max() < 0.03


def test_a_joint_model_makes_one_draw_for_all_arms() -> None:
    # A draw of theta ~ N(0, I): arms (1, 0), (0, 1) and (1, 1) are 0 and 1/√2 correlated.
    layout = Layout(num_arms=3, arm_dim=2)
    arms = {"arms": numpy.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])}
    found = correlations(LinTSModule(layout), arms)
    half = 0.5**0.5
    assert found[numpy.triu_indices(3, 1)] == pytest.approx([0.0, half, half], abs=0.03)


def test_a_hybrid_model_draws_what_arms_share_once_and_the_rest_for_each() -> None:
    # Nothing is known: x (beta + theta_arm), two draws of variance 1, of which arms share one.
    found = correlations(
        LinTSModule(FIXED, LinTSConfig(model="hybrid")), {"context": numpy.array([[1.0, 0.0]])}
    )
    assert found[numpy.triu_indices(3, 1)] == pytest.approx([0.5, 0.5, 0.5], abs=0.03)


@pytest.mark.parametrize(("layout", "options"), MODELS, ids=str)
@pytest.mark.parametrize("count", [1, 30])
def test_the_arm_of_the_highest_draw_is_chosen_and_its_scores_are_told(
    layout: Layout, options: dict[str, Any], count: int
) -> None:
    one, observations = taught(layout, **options), seen(layout, count, seed=1)
    acted = one.forward_exploration(act(observations, seed=7))
    draws = one.score(observations, numpy.random.default_rng(7))
    assert acted.actions.tolist() == draws.sampled.argmax(1).tolist()
    rows = numpy.arange(count)
    assert acted.extras["sampled"].tolist() == draws.sampled[rows, acted.actions].tolist()
    assert acted.extras["pred_label"].tolist() == draws.pred_label[rows, acted.actions].tolist()
    assert acted.extras["pred_sigma"].tolist() == draws.pred_sigma[rows, acted.actions].tolist()


def test_draws_leave_out_absent_arms() -> None:
    one, given = taught(FEATURED), seen(FEATURED, 2)
    mask = numpy.array([[True, False, True], [True, True, True]])
    given["arms"][0, 1] = numpy.nan
    draws = one.score({**given, "action_mask": mask}, numpy.random.default_rng(0))
    assert numpy.isneginf(draws.sampled).tolist() == (~mask).tolist()
    with pytest.raises(RunFailedError, match="arms has nan at row 0, arm 1, column 0"):
        one.score(given, numpy.random.default_rng(0))


def test_without_v_it_chooses_by_the_mean_alone() -> None:
    one, observations = taught(v=0.0), seen(FIXED, 50, seed=1)
    acted = one.forward_exploration(act(observations))
    assert acted.extras["sampled"].tolist() == acted.extras["pred_label"].tolist()
    assert acted.actions.tolist() == one.forward_inference(act(observations)).actions.tolist()


def test_v_may_be_given_with_each_call() -> None:
    one, observations = taught(v=50.0), seen(FIXED, 40, seed=1)
    best = one.forward_inference(act(observations)).actions.tolist()
    random = numpy.random.default_rng(0)
    assert one.choose(observations, random, v=0.0).tolist() == best
    assert one.choose(observations, random).tolist() != best
    draws = one.score(observations, random, v=0.0)
    assert draws.sampled.tolist() == draws.pred_label.tolist()
    half, whole = (one.score(observations, numpy.random.default_rng(1), v=v) for v in (0.5, 1.0))
    assert 2 * (half.sampled - half.pred_label) == pytest.approx(whole.sampled - whole.pred_label)
    draws = one.score(observations, numpy.random.default_rng(1))
    assert draws.sampled - draws.pred_label == pytest.approx(
        50 * (whole.sampled - whole.pred_label)
    )
    for call in (
        lambda: one.choose(observations, random, v=-1.0),
        lambda: one.score(observations, random, v=-1.0),
        lambda: one.confidence_width(observations, v=-1.0),
    ):
        with pytest.raises(RunFailedError, match=r"v must be at least 0, found -1\.0"):
            call()


def test_inference_draws_nothing_and_repeats_itself() -> None:
    one, observations = taught(v=50.0), seen(FIXED, 40, seed=1)
    first = one.forward_inference(act(observations, seed=1)).actions
    assert first.tolist() == one.forward_inference(act(observations, seed=2)).actions.tolist()
    assert first.tolist() != one.forward_exploration(act(observations)).actions.tolist()


@pytest.mark.parametrize("layout", [FIXED, FEATURED])
@pytest.mark.parametrize("count", [1, 200])
def test_absent_arms_are_never_chosen(layout: Layout, count: int) -> None:
    one, observations = taught(layout), seen(layout, count)
    mask = numpy.random.default_rng(1).random((count, 3)) < 0.5
    mask[:, 2] = True
    acted = one.forward_exploration(act(observations, mask))
    assert mask[numpy.arange(count), acted.actions].all()


@pytest.mark.parametrize(("layout", "options"), MODELS, ids=str)
def test_torch_draws_what_numpy_draws(
    layout: Layout, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for devices in (frozenset({"cpu"}), frozenset[str]()):
        monkeypatch.setattr(RidgeRegressions, "numpy_devices", devices)
        one = taught(layout, **options)
        for count in (1, 20):
            draws = one.score(seen(layout, count, seed=1), numpy.random.default_rng(2))
            answers.append(draws.sampled)
    assert answers[0] == pytest.approx(answers[2], abs=1e-10)
    assert answers[1] == pytest.approx(answers[3], abs=1e-10)


def test_where_nothing_is_unsure_the_mean_is_drawn() -> None:
    # A covariance of nought has no Cholesky factor.
    layout = Layout(num_arms=2, arm_dim=2)
    one = LinTSModule(layout)
    one.bandit.get_buffer("regressions.solved").zero_()
    assert one.score(numpy.ones((1, 2, 2)), numpy.random.default_rng(0)).sampled.tolist() == [
        [0.0, 0.0]
    ]


@pytest.mark.parametrize("count", [1, 9])
def test_an_infinite_feature_is_refused_when_choosing(count: int) -> None:
    observations = seen(FIXED, count)
    observations["context"][-1, 1] = numpy.inf
    with pytest.raises(RunFailedError, match=f"context has inf at row {count - 1}, column 1"):
        taught().forward_exploration(act(observations))


def test_it_is_saved_and_loaded_by_its_state_dict() -> None:
    one, two = taught(v=3.0), LinTSModule(FIXED)
    two.load_state_dict(one.state_dict())
    draws = [m.score(seen(FIXED, 9), numpy.random.default_rng(0)).sampled for m in (one, two)]
    assert draws[0].tolist() == draws[1].tolist()


def learner(**options: Any) -> Learner:
    config = LinTSConfig(**options)
    calls = HookCalls(Participant(describe("lints", LinTS), LinTS(config), config))
    space = spaces.Box(-1, 1, (2,), numpy.float64)
    made = Learner(calls, {"default": (space, spaces.Discrete(3))}, seed=0)
    made.build()
    return made


def test_an_update_learns_what_linucb_would_and_follows_the_schedule_of_v() -> None:
    one = learner(v=Schedule([(0, 2.0), (100, 0.0)]))
    module = one.modules["default"]
    assert isinstance(module, LinTSModule)
    context = seen(FIXED, 40)["context"]
    acted = module.forward_exploration(act(context))
    rewards = numpy.arange(40.0)
    columns = {"observations": context, "actions": acted.actions, "rewards": rewards}
    metrics = one.update({"default": Batch({**columns, **acted.extras})}, timestep=50)["default"]
    expected = LinUCBModule(FIXED, LinUCBConfig(alpha=1.0))
    expected.update(context, acted.actions, rewards)
    assert module.bandit.score(context).ucb.tolist() == expected.score(context).ucb.tolist()
    # Nothing was known: the predictions were 0.
    assert metrics["progressive_error"] == pytest.approx((rewards**2).mean())


def test_it_learns_to_choose_on_the_linear_bandit() -> None:
    one = LinTSModule(Layout(num_arms=10, context_dim=8))
    rounds = LinearBandit().start(0).draw(numpy.random.default_rng(0), 2_000, 1)
    random, regrets = numpy.random.default_rng(0), []
    for context, pays, expected, best in zip(
        rounds.observations, rounds.rewards, rounds.expected, rounds.best, strict=True
    ):
        arm = one.choose(context, random)
        one.update(context, arm, pays[0, arm])
        regrets.append(best[0] - expected[0, arm[0]])
    chance = (rounds.best[..., None] - rounds.expected).mean()
    assert numpy.mean(regrets[1_000:]) < 0.05 * chance


def test_what_cannot_be_handled_is_refused_with_the_reason() -> None:
    context, arms = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (4, 2))
    four = spaces.Discrete(4)
    assert LinTS().supports(context, four) is None
    disjoint = LinTS(LinTSConfig(model="disjoint"))
    assert "featured arms are others" in str(disjoint.supports(spaces.Dict(arms=arms), four))
    assert "needs Discrete actions" in str(LinTS().supports(context, context))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"v": -1}, "must be at least 0"),
        ({"alpha": 1}, "unknown option"),
        ({"squared_discount": True}, "no effect at discount = 1"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(values: dict[str, Any], complaint: str) -> None:
    config, problems = structure(LinTSConfig, values, "algorithm")
    assert config is None
    assert complaint in problems[0].message
