"""Arms that come and go: added and removed by hand, or told by the observations' ids."""

from __future__ import annotations

from typing import Any

import attrs
import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_linucb import (
    Layout,
    LinTSConfig,
    LinTSModule,
    LinUCB,
    LinUCBConfig,
    LinUCBModule,
)
from rlplug_linucb.layout import layout_of
from rlplug_linucb.linucb import RidgeRegressions

import rlplug
from rlplug.errors import RequestError, RunFailedError, UnsupportedSpaceError

LAYOUT = Layout(num_arms=3, context_dim=2)
FEATURED = Layout(num_arms=3, context_dim=2, arm_dim=2)
MODELS: list[tuple[Layout, dict[str, Any]]] = [
    (LAYOUT, {}),
    (LAYOUT, {"discount": 0.9, "squared_discount": True}),
    (LAYOUT, {"model": "hybrid"}),
    (LAYOUT, {"model": "hybrid", "l2_lambda": 0.0}),
    (FEATURED, {"model": "hybrid"}),
]


def seen(layout: Layout, count: int, seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    parts = {"context": random.standard_normal((count, 2))}
    if layout.arm_dim:
        parts["arms"] = random.standard_normal((count, layout.num_arms, 2))
    return parts


def taught(layout: Layout = LAYOUT, **options: Any) -> LinUCBModule:
    """A module that has learned 30 rows."""
    one, random = LinUCBModule(layout, LinUCBConfig(**options)), numpy.random.default_rng(1)
    one.update(seen(layout, 30), random.integers(0, 3, 30), random.standard_normal(30))
    return one


@pytest.mark.parametrize("on_numpy", [True, False])
@pytest.mark.parametrize(("layout", "options"), MODELS, ids=str)
def test_an_arm_that_is_added_starts_without_data_and_the_others_know_what_they_knew(
    layout: Layout, options: dict[str, Any], on_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_numpy:
        monkeypatch.setattr(RidgeRegressions, "numpy_devices", frozenset())
    one = taught(layout, **options)
    before = one.score(seen(layout, 5, seed=2))
    assert one.add_arm() == 3
    assert (one.layout.num_arms, one.A[3].tolist()) == (4, [[0, 0], [0, 0]])
    probe = seen(one.layout, 5, seed=2)
    if layout.arm_dim:
        probe["arms"][:, :3] = seen(layout, 5, seed=2)["arms"]
    after = one.score(probe)
    for old, new in zip(before, after, strict=True):
        assert new[:, :3] == pytest.approx(old, abs=1e-9)
    one.update(probe, numpy.full(5, 3), numpy.ones(5))
    weights = options.get("discount", 1.0) ** numpy.arange(4, -1, -1)
    assert one.b[3] == pytest.approx(weights @ probe["context"])


@pytest.mark.parametrize(("layout", "options"), MODELS, ids=str)
def test_an_arm_that_is_removed_leaves_what_the_others_know(
    layout: Layout, options: dict[str, Any]
) -> None:
    one = taught(layout, **options)
    probe = seen(layout, 5, seed=2)
    before = one.score(probe)
    one.remove_arm(1)
    assert one.layout.num_arms == 2
    if layout.arm_dim:
        probe["arms"] = probe["arms"][:, [0, 2]]
    for old, new in zip(before, one.score(probe), strict=True):
        assert new == pytest.approx(old[:, [0, 2]], abs=1e-9)
    # It goes on learning as a module does that never had the arm's own coefficients to fit.
    one.update(probe, numpy.ones(5, dtype=int), numpy.ones(5))
    assert (one.score(probe).pred_sigma[:, 1] <= before.pred_sigma[:, 2] + 1e-9).all()


def test_arms_with_names_are_credited_added_and_removed_by_them() -> None:
    named = Layout(num_arms=3, context_dim=2, arm_names=("news", "sport", "arts"))
    one, two = LinUCBModule(named), LinUCBModule(LAYOUT)
    context = seen(LAYOUT, 3)["context"]
    one.update(context, ["arts", "news", "arts"], numpy.ones(3))
    two.update(context, [2, 0, 2], numpy.ones(3))
    assert one.score(context).ucb.tolist() == two.score(context).ucb.tolist()
    one.remove_arm("news")
    assert one.layout.arm_names == ("sport", "arts")
    assert one.score(context).ucb == pytest.approx(two.score(context).ucb[:, 1:])
    assert one.add_arm("food") == 2
    assert one.layout.arm_names == ("sport", "arts", "food")
    with pytest.raises(RunFailedError, match="no arm 'news'\\.\n  try: sport, arts, food"):
        one.update(context, ["news"] * 3, numpy.ones(3))
    for name in ("", "arts"):
        with pytest.raises(RunFailedError, match=f"cannot be added as '{name}', the arms are sp"):
            one.add_arm(name)
    with pytest.raises(RunFailedError, match="cannot be added as 'news', the arms are numbered"):
        two.add_arm("news")


def test_a_module_whose_arms_have_changed_is_saved_and_loaded_by_its_layout() -> None:
    one = taught()
    one.add_arm()
    one.remove_arm(0)
    two = LinUCBModule(one.layout)
    two.load_state_dict(one.state_dict())
    probe = seen(LAYOUT, 3)
    assert two.score(probe).ucb.tolist() == one.score(probe).ucb.tolist()


def test_names_are_loaded_with_the_regressions_that_they_name() -> None:
    named = Layout(num_arms=3, context_dim=2, arm_names=("a", "b", "c"))
    one, two = LinUCBModule(named), LinUCBModule(named)
    context = seen(LAYOUT, 2)["context"]
    one.update(context, ["a", "c"], numpy.ones(2))
    one.remove_arm("b")
    one.add_arm("d")
    two.load_state_dict(one.state_dict())
    assert two.layout.arm_names == ("a", "c", "d")
    two.update(context, ["c", "c"], numpy.ones(2))
    one.update(context, ["c", "c"], numpy.ones(2))
    assert two.score(context).ucb.tolist() == one.score(context).ucb.tolist()
    # A state without names, as of a module without them, leaves those of the module.
    state = LinUCBModule(attrs.evolve(named, arm_names=())).state_dict()
    two.load_state_dict(state)
    assert two.layout.arm_names == ("a", "c", "d")
    with pytest.raises(RequestError, match=r"sums has the shape \(3, 3, 2\), the module's has \(2"):
        LinUCBModule(Layout(num_arms=2, context_dim=2, arm_names=("a", "b"))).load_state_dict(
            one.state_dict()
        )


def test_names_of_arms_that_share_a_regression_are_loaded_however_many_they_are() -> None:
    named = Layout(num_arms=2, arm_dim=2, arm_names=("a", "b"))
    one, two = LinUCBModule(named), LinUCBModule(named)
    one.add_arm("c")
    two.load_state_dict(one.state_dict())
    assert two.layout == one.layout
    features = numpy.random.default_rng(0).standard_normal((1, 3, 2))
    two.update(features, ["c"], [1.0])
    assert two.score(features).ucb.shape == (1, 3)


@pytest.mark.parametrize("column", [numpy.array(["a", "c"], object), numpy.array([0, "c"], object)])
def test_names_in_a_column_of_a_table_are_names(column: Any) -> None:
    named = Layout(num_arms=3, context_dim=2, arm_names=("a", "b", "c"))
    one, two = LinUCBModule(named), LinUCBModule(named)
    one.update(seen(LAYOUT, 2), column, numpy.ones(2))
    two.update(seen(LAYOUT, 2), [0, 2], numpy.ones(2))
    assert one.A.tolist() == two.A.tolist()


@pytest.mark.parametrize("name", ["", 3, "a\0b"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="arm_names must be texts that are not empty"):
        Layout(num_arms=2, context_dim=2, arm_names=(name, "b"))
    named = LinUCBModule(Layout(num_arms=2, context_dim=2, arm_names=("a", "b")))
    with pytest.raises(RunFailedError, match="cannot be added as"):
        named.add_arm(name)


def test_featured_arms_of_a_joint_model_may_be_any_number() -> None:
    one = taught(FEATURED)
    one.add_arm()
    assert one.score(seen(one.layout, 2)).ucb.shape == (2, 4)


def test_the_name_of_an_arm_is_a_text() -> None:
    named = LinUCBModule(Layout(num_arms=2, context_dim=1, arm_names=("a", "b")))
    with pytest.raises(RunFailedError, match="cannot be added as 3"):
        named.add_arm(3)  # type: ignore[arg-type] # what is refused


def test_what_cannot_be_added_or_removed_is_refused() -> None:
    with pytest.raises(RunFailedError, match="one regression for all fixed arms"):
        taught(model="joint").add_arm()
    two = taught()
    two.remove_arm(0)
    with pytest.raises(RunFailedError, match="arm 1 is one of the last two"):
        two.remove_arm(1)
    with pytest.raises(RunFailedError, match=r"no arm 2\.\n  try: 0 to 1"):
        two.remove_arm(2)


def test_thompson_sampling_adds_and_removes_arms_too() -> None:
    one = LinTSModule(LAYOUT, LinTSConfig())
    one.add_arm()
    one.remove_arm(0)
    one.add_arm()
    random = numpy.random.default_rng(0)
    chosen = one.choose(numpy.ones((400, 2)), random)
    assert sorted(set(chosen.tolist())) == [0, 1, 2, 3]


# -- ids in the observations ----------------------------------------------------------------------

WITH_IDS = Layout(num_arms=3, context_dim=2, max_arms=4)


@pytest.mark.parametrize("on_numpy", [True, False])
@pytest.mark.parametrize("model", ["disjoint", "hybrid"])
def test_arms_are_known_by_their_ids_wherever_they_stand(
    model: Any, on_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_numpy:
        monkeypatch.setattr(RidgeRegressions, "numpy_devices", frozenset())
    one = LinUCBModule(WITH_IDS, LinUCBConfig(model=model))
    two = LinUCBModule(LAYOUT, LinUCBConfig(model=model))
    random = numpy.random.default_rng(0)
    for count in (1, 40):
        context, rewards = random.standard_normal((count, 2)), random.standard_normal(count)
        order = random.permuted(numpy.tile(numpy.arange(3), (count, 1)), axis=1)
        arms = random.integers(0, 3, count)
        # The arm of index i has the id 10 + order[i].
        one.update({"context": context, "arm_ids": 10 + order}, arms, rewards)
        two.update(context, order[range(count), arms], rewards)
    scores = one.score({"context": context, "arm_ids": 10 + order})
    for mine, other in zip(scores, two.score(context), strict=True):
        assert mine == pytest.approx(numpy.take_along_axis(other, order, axis=1), abs=1e-9)
    # An arm that was never learned: no reward, and of its own coefficients no data.
    new = one.score({"context": context, "arm_ids": 50 + order})
    assert (new.pred_sigma > scores.pred_sigma).all()
    if model == "disjoint":
        assert new.pred_label.tolist() == numpy.zeros((40, 3)).tolist()
        assert new.pred_sigma == pytest.approx(
            numpy.linalg.norm(context, axis=1)[:, None].repeat(3, 1)
        )


@pytest.mark.parametrize("model", ["disjoint", "hybrid"])
def test_beyond_the_most_the_arm_learned_least_recently_is_forgotten(model: Any) -> None:
    one = LinUCBModule(WITH_IDS, LinUCBConfig(model=model))

    def learn(arm: int) -> None:
        one.update({"context": numpy.ones((1, 2)), "arm_ids": numpy.full((1, 3), arm)}, [0], [1.0])

    def sigma(arm: int) -> float:
        probe = {"context": numpy.array([[1.0, -1.0]]), "arm_ids": numpy.full((1, 3), arm)}
        learned = {"context": numpy.ones((1, 2)), "arm_ids": numpy.full((1, 3), arm)}
        assert one.score(probe).pred_sigma[0, 0] > 0
        return float(one.score(learned).pred_sigma[0, 0])

    for arm in (1, 2, 3, 4, 1):
        learn(arm)
    known = sigma(2)
    learn(5)
    assert one.arm_ids is not None
    assert sorted(one.arm_ids.ids.tolist()) == [1, 3, 4, 5]
    assert sigma(2) > known
    assert sigma(2) == pytest.approx(sigma(99))
    one.remove_arm(3)
    assert sigma(3) == pytest.approx(sigma(99))
    learn(6)
    assert sorted(one.arm_ids.ids.tolist()) == [1, 4, 5, 6]


def test_arms_with_ids_are_saved_and_loaded() -> None:
    one, two = LinUCBModule(WITH_IDS), LinUCBModule(WITH_IDS)
    given = {"context": seen(LAYOUT, 4)["context"], "arm_ids": numpy.array([[7, 8, 9]] * 4)}
    one.update(given, [0, 1, 2, 1], numpy.ones(4))
    two.load_state_dict(one.state_dict())
    assert two.score(given).ucb.tolist() == one.score(given).ucb.tolist()


@pytest.mark.parametrize(
    ("layout", "parts", "complaint"),
    [
        (WITH_IDS, {}, "arm_ids must have the shape (n, 3), found nothing"),
        (LAYOUT, {"arm_ids": numpy.zeros((1, 3))}, "try: Layout(max_arms=200, ...)"),
        (WITH_IDS, {"arm_ids": numpy.full((1, 3), -1)}, "chosen arm of row 0 has the id -1"),
    ],
)
def test_ids_that_do_not_fit_are_refused(
    layout: Layout, parts: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(RunFailedError) as raised:
        LinUCBModule(layout).update({"context": numpy.ones((1, 2)), **parts}, [0], [1.0])
    assert complaint in str(raised.value)


def test_spaces_with_ids_are_understood_or_refused_with_the_reason() -> None:
    context, two = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    ids = spaces.Box(0, 9, (2,), numpy.int64)
    space = spaces.Dict({"context": context, "arm_ids": ids})
    assert layout_of(space, two, max_arms=7) == Layout(num_arms=2, context_dim=2, max_arms=7)
    reason = LinUCB(LinUCBConfig(model="joint")).supports(space, two)
    assert reason is not None
    assert "try model = 'disjoint'" in reason
    for wrong in (spaces.Box(0, 9, (3,), numpy.int64), spaces.Box(0, 9, (2,))):
        with pytest.raises(UnsupportedSpaceError, match="arm_ids must"):
            layout_of(spaces.Dict({"context": context, "arm_ids": wrong}), two, max_arms=7)


class Newsstand(gymnasium.Env[Any, Any]):
    """Four articles at a time; each is replaced after 150 rounds, odd ids earn 1, even ones 0."""

    observation_space = spaces.Dict(
        {
            "context": spaces.Box(0, 1, (1,), numpy.float64),
            "arm_ids": spaces.Box(0, 2**31, (4,), numpy.int64),
        }
    )
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self.round, self.earned = 0, 0.0

    def _observation(self) -> Any:
        ids = numpy.roll(numpy.arange(4) + self.round // 150, self.round)
        return {"context": numpy.ones(1), "arm_ids": ids}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.shown = self._observation()
        return self.shown, {}

    def step(self, action: Any) -> Any:
        self.round += 1
        reward = float(self.shown["arm_ids"][action] % 2)
        self.earned += reward
        return self._observation(), reward, True, False, {}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("algorithm", ["linucb", "lints"])
def test_a_run_learns_arms_that_come_and_go(algorithm: str) -> None:
    made: list[Newsstand] = []

    def newsstand() -> Newsstand:
        made.append(Newsstand())
        return made[-1]

    options = {"max_arms": 5, "tracking.enabled": False, "evaluation.every": 0}
    rlplug.run(algorithm, newsstand, steps=900, seed=0, options=options)
    # Nine articles came, four at a time. Choosing at random earns 0.5.
    assert max(one.earned for one in made) > 0.9 * 900


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ([None, 1], "arm None of row 0 is no whole number"),
        ([0, "b"], "arm '0' of row 0 is no whole number"),
        ([0, 1e300], "arm 1e\\+300 of row 1 is no whole number"),
        ([0, float("nan")], "arm nan of row 1 is no whole number"),
        ([0, 3], "arm 3 of row 1 is none of 0 to 2"),
        ([-1, 0], "arm -1 of row 0 is none of 0 to 2"),
    ],
)
def test_what_is_no_arm_is_refused_with_its_row(arms: Any, said: str) -> None:
    one = LinUCBModule(LAYOUT)
    with pytest.raises(RunFailedError, match=said):
        one.update(seen(LAYOUT, 2), arms, numpy.ones(2))
    assert not one.A.any()


@pytest.mark.parametrize("arm", [1.5, True, None, "news", 3, -1])
def test_what_is_no_arm_cannot_be_removed(arm: Any) -> None:
    with pytest.raises(RunFailedError, match=f"there is no arm {arm!r}.\n  try: 0 to 2"):
        LinUCBModule(LAYOUT).remove_arm(arm)
    one = LinUCBModule(LAYOUT)
    one.remove_arm(numpy.int64(2))
    assert one.layout.num_arms == 2


@pytest.mark.parametrize("alpha", ["x", [1.0], float("nan"), -0.1, float("inf")])
def test_what_is_no_width_is_refused(alpha: Any) -> None:
    one, random = LinUCBModule(LAYOUT), numpy.random.default_rng(0)
    with pytest.raises(RunFailedError, match="alpha must be at least 0, found "):
        one.choose(seen(LAYOUT, 2), random, alpha=alpha)
    assert one.choose(seen(LAYOUT, 2), random, alpha=0).shape == (2,)


def test_the_reward_of_an_absent_arm_is_refused_and_not_learned() -> None:
    one = LinUCBModule(LAYOUT)
    masked = {**seen(LAYOUT, 2), "action_mask": numpy.array([[1, 1, 1], [1, 0, 1]], numpy.int8)}
    with pytest.raises(RunFailedError, match="arm 1 of row 1 is absent in its action_mask"):
        one.update(masked, [1, 1], numpy.ones(2))
    assert not one.A.any()
    one.update(masked, [1, 2], numpy.ones(2))
    assert one.A.any()


def test_ids_are_whole_where_an_arm_is_and_anything_where_none_is() -> None:
    one, random = LinUCBModule(WITH_IDS), numpy.random.default_rng(0)
    given = {"context": numpy.ones((1, 2)), "arm_ids": numpy.array([[5.5, 7.0, 8.0]])}
    for call in (lambda: one.update(given, [0], [1.0]), lambda: one.choose(given, random)):
        with pytest.raises(RunFailedError, match=r"arm id 5\.5 of row 0 is no whole number"):
            call()
    assert not one.A.any()
    absent = {
        "context": numpy.ones((1, 2)),
        "arm_ids": numpy.array([[numpy.nan, 7.0, 8.0]]),
        "action_mask": numpy.array([[0, 1, 1]]),
    }
    one.update(absent, [1], [1.0])
    assert one.arm_ids is not None
    assert one.arm_ids.ids.tolist()[0] == 7


def test_an_arm_is_removed_by_an_id_of_any_type_of_integers() -> None:
    one = LinUCBModule(WITH_IDS)
    one.update({"context": numpy.ones((1, 2)), "arm_ids": numpy.array([[7, 8, 9]])}, [1], [1.0])
    for arm in ("news", 8.0, True):
        with pytest.raises(RunFailedError, match=f"known by their arm_ids, and {arm!r} is none"):
            one.remove_arm(arm)  # type: ignore[arg-type] # what is refused
    assert one.A.any()
    one.remove_arm(numpy.int64(8))  # type: ignore[arg-type] # NumPy's integers are no `int`
    assert not one.A.any()


def test_parts_of_observations_may_be_lists_and_have_as_many_rows() -> None:
    one, random = LinUCBModule(LAYOUT), numpy.random.default_rng(0)
    context = seen(LAYOUT, 4)["context"]
    only = [[0, 1, 0]] * 4
    assert (
        one.choose({"context": context.tolist(), "action_mask": only}, random).tolist() == [1] * 4
    )
    for mask in (numpy.ones((3, 3)), numpy.ones((1, 3))):
        for call in (
            lambda mask=mask: one.choose(context, random, mask),
            lambda mask=mask: one.score(context, action_mask=mask),
        ):
            with pytest.raises(RunFailedError, match="context has 4, action_mask has"):
                call()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [LAYOUT, FEATURED])
def test_tensors_of_few_digits_and_of_a_graph_are_learned(layout: Layout, dtype: Any) -> None:
    one, two = LinUCBModule(layout), LinUCBModule(layout)
    tensors = {name: torch.tensor(part).to(dtype) for name, part in seen(layout, 2).items()}
    arrays = {name: part.double().numpy() for name, part in tensors.items()}
    rewards = torch.ones(2, dtype=dtype).requires_grad_()
    one.update({name: part.requires_grad_() for name, part in tensors.items()}, [0, 2], rewards)
    two.update(arrays, [0, 2], numpy.ones(2))
    assert one.A.tolist() == two.A.tolist()
    assert one.score(tensors).ucb.tolist() == two.score(arrays).ucb.tolist()


def test_discounts_that_are_none_are_refused() -> None:
    one = taught()
    for gamma in (-0.5, float("nan"), float("inf")):
        with pytest.raises(RunFailedError, match="data cannot be discounted by"):
            one.discount_(gamma)
    assert one.alpha.tolist() == [1.0]
    assert numpy.isfinite(one.score(seen(LAYOUT, 1)).ucb).all()
