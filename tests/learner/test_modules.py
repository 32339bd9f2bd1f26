"""Several modules: which learn, which share, and how they come and go."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch.optim import SGD

from rlplug import ALL_MODULES, Batch, Loss, Module
from rlplug.batch.episodes import Episode
from rlplug.errors import PluginError, RequestError
from rlplug.learner.optimizers import default_optimizer


class Head(Module):
    """A weight of its own behind an encoder that others may use as well."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = torch.nn.Parameter(torch.ones(1))

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.encoder(batch["x"][:, None]) * self.head}


def sharing() -> dict[str, Any]:
    encoder = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(encoder.weight)

    def optimizers(self: Any, module_id: str, module: Any) -> Any:
        params = module.parameters() if module_id == ALL_MODULES else [module.head]
        return SGD(params, lr=1.0)

    return {
        "ids": ("a", "b"),
        "build": lambda self: Head(encoder),
        "configure_optimizers_for_module": optimizers,
        "compute_loss_for_module": lambda self, fwd_out: fwd_out["out"].sum(),
    }


def test_a_shared_encoder_gets_the_gradients_of_both_modules(make: Any, batch: Any) -> None:
    learner = make(**sharing())
    results = learner.update({"a": batch(0.25), "b": batch(0.5)}, timestep=1)
    encoder = learner.modules["a"].encoder.weight
    assert encoder is learner.modules["b"].encoder.weight
    assert encoder.item() == 1 - (0.25 + 0.5)
    assert learner.modules["a"].head.item() == 0.75
    assert learner.modules["b"].head.item() == 0.5
    assert float(results[ALL_MODULES]["grad_norm"]) == 0.75
    assert learner.get_optimizer(ALL_MODULES).param_groups[0]["params"] == [encoder]


def test_shared_parameters_move_by_the_sum_of_named_losses_as_well(make: Any, batch: Any) -> None:
    def named(self: Any, fwd_out: Any) -> Any:
        return Loss({"default": fwd_out["out"].sum()})

    learner = make(**{**sharing(), "compute_loss_for_module": named})
    learner.update({"a": batch(0.25), "b": batch(0.5)}, timestep=1)
    assert learner.modules["a"].encoder.weight.item() == 1 - (0.25 + 0.5)
    assert learner.modules["a"].head.item() == 0.75


def test_shared_parameters_are_clipped_like_others(make: Any, batch: Any) -> None:
    learner = make(**sharing(), learning={"max_grad_norm": 0.25})
    learner.update({"a": batch(0.5), "b": batch(0.5)}, timestep=1)
    assert learner.modules["a"].encoder.weight.item() == pytest.approx(0.75, abs=1e-4)


def test_a_shared_parameter_in_a_modules_own_optimizer_is_refused(make: Any) -> None:
    known = {
        **sharing(),
        "configure_optimizers_for_module": lambda self, module: SGD(module.parameters(), lr=1.0),
    }
    with pytest.raises(PluginError, match="in two optimizers: 'default' of module 'a' and") as told:
        make(**known)
    assert "ALL_MODULES" in told.value.hints[0]

    def of_one(self: Any, module_id: str, module: Any) -> Any:
        return SGD(module.parameters(), lr=1.0) if module_id == "a" else None

    with pytest.raises(PluginError, match=r"'encoder\.weight', which other modules share"):
        make(**{**known, "configure_optimizers_for_module": of_one})


def test_by_default_shared_parameters_get_an_adam_of_their_own(make: Any, batch: Any) -> None:
    learner = make(**{**sharing(), "configure_optimizers_for_module": None})
    learner.update({"a": batch(1.0), "b": batch(1.0)}, timestep=1)
    assert learner.modules["a"].encoder.weight.item() == pytest.approx(0.9)


def test_modules_to_train_may_be_ids_or_a_function_of_the_batch(make: Any, batch: Any) -> None:
    learner = make(ids=("a", "b"))
    batches = {"a": batch(1.0), "b": batch(1.0, 1.0)}
    learner.modules_to_train = {"b"}
    assert set(learner.update(batches, timestep=1)) == {"b", ALL_MODULES}
    learner.modules_to_train = lambda module_id, batch: batch.rows == 1
    assert set(learner.update(batches, timestep=1)) == {"a", ALL_MODULES}
    assert set(batches) == {"a", "b"}


def test_the_callers_batch_is_never_changed(make: Any) -> None:
    rows = Batch({"x": numpy.ones(3), "y": numpy.zeros(3)})

    def prepare(self: Any, batch: Any) -> Any:
        return {"x": batch["x"] * 2, "advantage": batch["x"]}

    learner = make(prepare_batch=prepare)
    metrics = learner.update({"default": rows}, timestep=1)["default"]
    assert float(metrics["loss"]) == 4.0
    assert list(rows) == ["x", "y"]
    assert rows.array("x").tolist() == [1.0, 1.0, 1.0]


def test_addons_prepare_before_the_algorithm(make: Any, batch: Any) -> None:
    learner = make(
        prepare_batch=lambda self, batch: {"x": batch["x"] * 10},
        addons={"bonus": {"prepare_batch": lambda self, batch: {"x": batch["x"] + 1}}},
    )
    metrics = learner.update({"default": batch(2.0)}, timestep=1)["default"]
    assert float(metrics["loss"]) == 2 * (2 + 1) * 10


def test_modules_are_added_and_removed_in_mid_training(make: Any, batch: Any) -> None:
    learner = make(addons={"more": {"build_extra": lambda self: torch.nn.Linear(2, 2)}})
    learner.update({"default": batch(1.0)}, timestep=1)
    learner.add_module("copy", like="default")
    assert learner.modules["copy"].weight.item() == pytest.approx(1.9)
    extras = learner.extra
    assert torch.equal(extras["copy"]["more"].weight, extras["default"]["more"].weight)
    learner.update({"default": batch(1.0), "copy": batch(2.0)}, timestep=2)
    assert learner.modules["default"].weight.item() == pytest.approx(1.8)
    assert learner.modules["copy"].weight.item() == pytest.approx(1.7)
    learner.remove_module("copy")
    assert list(learner.modules) == ["default"]
    assert list(learner.extra) == ["default"]
    with pytest.raises(PluginError, match="has no optimizer"):
        learner.get_optimizer("copy")


def test_a_frozen_opponent_does_not_learn(make: Any, batch: Any) -> None:
    learner = make()
    learner.add_module("rival", like="default", trainable=False)
    results = learner.update({"default": batch(1.0), "rival": batch(1.0)}, timestep=1)
    assert "rival" not in results
    assert learner.modules["rival"].weight.item() == 2.0


def test_a_given_module_that_is_no_torch_module_is_left_out_of_gradients(
    make: Any, batch: Any
) -> None:
    class Dice:
        def forward_exploration(self, act: Any) -> Any:
            return act

    learner = make(modules={"dice": Dice()})
    results = learner.update({"default": batch(1.0), "dice": batch(1.0)}, timestep=1)
    assert results["dice"] == {}
    assert learner.get_optimizers_for_module("dice") == []


def test_a_second_build_changes_nothing(make: Any) -> None:
    learner = make()
    module, optimizer = learner.modules["default"], learner.get_optimizer()
    learner.build()
    assert learner.modules["default"] is module
    assert learner.get_optimizer() is optimizer


def test_a_batch_for_an_unknown_module_is_refused(make: Any, batch: Any) -> None:
    with pytest.raises(RequestError, match=r"module 'defualt'.* Did you mean 'default'"):
        make().update({"defualt": batch(1.0)}, timestep=1)


def test_a_learner_that_is_not_built_says_so(make: Any, batch: Any) -> None:
    with pytest.raises(RequestError, match=r"none: call build\(\) first"):
        make(built=False).update({"default": batch(1.0)}, timestep=1)


def test_columns_of_different_lengths_are_refused_by_name(make: Any) -> None:
    rows = Batch({"x": torch.ones(3), "rewards": torch.ones(2)})
    with pytest.raises(RequestError, match=r"'rewards' .* of shape \(2,\), not of 3 rows"):
        make().update({"default": rows}, timestep=1)


def test_a_parameter_in_two_optimizers_is_refused(make: Any) -> None:
    def twice(self: Any, module: Any) -> Any:
        return [SGD([module.weight], lr=1.0), SGD([module.weight], lr=1.0)]

    with pytest.raises(PluginError, match="in two optimizers: '0' of module 'default' and '1'"):
        make(configure_optimizers_for_module=twice)


def test_an_addons_optimizer_over_the_algorithms_parameters_is_refused(make: Any) -> None:
    greedy = {"configure_optimizers_for_module": lambda self, module: SGD([module.weight], lr=1.0)}
    with pytest.raises(PluginError, match="'weight', which belongs to 'alg'"):
        make(
            configure_optimizers_for_module=lambda self, module: SGD([module.other], lr=1.0),
            addons={"greedy": greedy},
        )


def test_an_optimizer_over_parameters_from_elsewhere_is_refused(make: Any) -> None:
    foreign = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(PluginError, match=r"shape \(3,\) that is neither in the module"):
        make(configure_optimizers_for_module=lambda self: SGD([foreign], lr=1.0))


def test_two_optimizers_of_one_name_are_refused(make: Any) -> None:
    def register(self: Any, module_id: Any, module: Any, learner: Any) -> Any:
        learner.register_optimizer(module_id, "mine", SGD([module.weight], lr=1.0))
        return {"mine": SGD([module.other], lr=1.0)}

    with pytest.raises(PluginError, match="has an optimizer 'mine' already"):
        make(configure_optimizers_for_module=register)


def test_a_refused_optimizer_leaves_the_learner_as_it_was(make: Any) -> None:
    learner = make()
    stranger = SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(PluginError, match="neither in the module nor in an extra"):
        learner.register_optimizer("default", "mine", stranger)
    with pytest.raises(RequestError, match="has no module 'defalt'"):
        learner.register_optimizer("defalt", "mine", stranger)
    assert [name for name, _ in learner.get_optimizers_for_module()] == ["default"]


def test_parameters_without_a_rate_or_a_hook_are_refused() -> None:
    class Silent:
        pass

    with pytest.raises(PluginError, match="neither an option 'learning_rate'"):
        default_optimizer(Silent(), "alg", [torch.nn.Parameter(torch.zeros(1))])


def test_a_module_without_optimizers_runs_no_forward_pass(make: Any, batch: Any) -> None:
    class Closed(Module):
        def forward_train(self, batch: Any) -> Any:
            raise AssertionError("nobody needs it")

    def absorb(self: Any, batch: Any, timestep: int, metrics: Any) -> Any:
        return {"rows": batch.rows, "at": timestep}

    learner = make(
        build=lambda self: Closed(),
        configure_optimizers_for_module=lambda self: None,
        compute_loss_for_module=None,
        additional_update=absorb,
    )
    assert learner.update({"default": batch(1.0, 2.0)}, timestep=7)["default"] == {
        "rows": 2,
        "at": 7,
    }


def test_additional_update_sees_the_averages_and_can_be_called_for_some(
    make: Any, batch: Any
) -> None:
    seen = []

    def additional(self: Any, module_id: str, metrics: Any) -> Any:
        seen.append((module_id, {name: float(value) for name, value in metrics.items()}))
        return {"kl_coef": 0.5}

    learner = make(ids=("a", "b"), additional_update=additional, learning={"max_grad_norm": 9})
    learner.update({"a": batch(1.0)}, timestep=1, num_iters=2)
    # The losses are 2.0 and, after a step of 0.1, 1.9.
    assert seen[0][1]["loss"] == pytest.approx(1.95)
    batches = {"a": batch(1.0), "b": batch(1.0)}
    assert learner.additional_update(batches, timestep=2, module_ids=["b"]) == {
        "b": {"kl_coef": 0.5}
    }
    assert seen[-1] == ("b", {})


def test_without_a_reduction_the_results_of_every_minibatch_are_listed(
    make: Any, batch: Any
) -> None:
    learner = make()
    parts = learner.update_from_batch(batch(1.0), num_iters=3, reduce_fn=None)
    losses = [round(float(part["default"]["loss"]), 4) for part in parts]
    assert losses == [2.0, 1.9, 1.8]
    assert learner.timestep == 1
    given: list[Any] = []

    def first(parts: Any) -> Any:
        given.extend(parts)
        return parts[0]

    reduced = learner.update_from_batch(batch(1.0), num_iters=2, reduce_fn=first)
    assert [round(float(part["default"]["loss"]), 4) for part in given] == [1.7, 1.6]
    assert float(reduced["default"]["loss"]) == pytest.approx(1.7)
    # What the update as a whole reports comes beside.
    assert reduced["default"]["learning_rate"] == 0.1
    assert reduced[ALL_MODULES]["steps_trained"] == 1


def test_episodes_become_fragments_of_a_batch(make: Any) -> None:
    seen: dict[str, Any] = {}

    def prepare(self: Any, batch: Any) -> Any:
        seen.update({name: batch[name].tolist() for name in batch})
        return {"x": batch["rewards"]}

    learner = make(prepare_batch=prepare)
    ended = Episode(
        observations=numpy.array([[1.0], [2.0]]),
        final_observation=numpy.array([3.0]),
        actions=numpy.array([0, 1]),
        rewards=numpy.array([1.0, 1.0]),
        terminated=True,
    )
    cut = Episode(
        observations=numpy.array([[7.0]]),
        final_observation=numpy.array([8.0]),
        actions=numpy.array([1]),
        rewards=numpy.array([4.0]),
    )
    results = learner.update_from_episodes([ended, cut])
    assert seen["next_observations"] == [[2.0], [3.0], [8.0]]
    assert seen["terminated"] == [False, True, False]
    assert seen["truncated"] == [False, False, False]
    assert seen["fragments"] == [[0, 2], [2, 3]]
    assert seen["final_observations"] == [[3.0], [8.0]]
    assert float(results["default"]["loss"]) == 4.0


def test_episodes_with_different_extras_are_refused(make: Any) -> None:
    def episode(**extras: Any) -> Episode:
        column = numpy.ones((1, 1), numpy.float32)
        return Episode(
            observations=column,
            final_observation=column[0],
            actions=column,
            rewards=column[0],
            extras=extras,
        )

    both = [episode(x=numpy.ones(1)), episode()]
    with pytest.raises(RequestError, match="differ in their extras"):
        make().update_from_episodes(both)


def test_an_episode_without_steps_is_refused(make: Any) -> None:
    nothing = Episode(
        observations=numpy.zeros((0, 1)),
        final_observation=numpy.zeros(1),
        actions=numpy.zeros(0),
        rewards=numpy.zeros(0),
    )
    with pytest.raises(RequestError, match="has no steps"):
        make().update_from_episodes([nothing])


def test_an_update_can_be_made_step_by_step(make: Any, batch: Any) -> None:
    whole, apart = make(ids=("a", "b")), make(ids=("a", "b"))
    batches = {"a": batch(3.0), "b": batch(5.0)}
    whole.update(batches, timestep=1)
    losses = apart.compute_loss(apart.forward_train(batches), batches)
    assert {name: float(value.detach()) for name, value in losses.items()} == {
        "a": 6.0,
        "b": 10.0,
        ALL_MODULES: 16.0,
    }
    gradients = apart.postprocess_gradients(apart.compute_gradients(losses))
    assert float(gradients[apart.modules["b"].weight]) == 5.0
    apart.apply_gradients(gradients)
    for module_id in ("a", "b"):
        assert apart.modules[module_id].weight.item() == whole.modules[module_id].weight.item()
    assert apart.modules["b"].weight.item() == 1.5


def test_registered_metrics_are_reported_once_with_their_module(make: Any, batch: Any) -> None:
    learner = make()
    learner.register_metric("default", "lives", 3)
    learner.register_metrics("default", {"deaths": 1})
    metrics = learner.update({"default": batch(1.0)}, timestep=1)["default"]
    assert (metrics["lives"], metrics["deaths"]) == (3, 1)
    assert "lives" not in learner.update({"default": batch(1.0)}, timestep=2)["default"]


def test_an_optimizer_of_all_modules_over_parameters_that_none_share_is_refused(make: Any) -> None:
    learner = make(ids=("a", "b"))
    before = learner.get_optimizers_for_module("a")
    optimizer = SGD(learner.modules["a"].parameters(), lr=1.0)
    with pytest.raises(PluginError, match="no two modules share a parameter") as raised:
        learner.register_optimizer(ALL_MODULES, "shared", optimizer)
    assert "under the id of the module" in str(raised.value)
    assert learner.get_optimizers_for_module(ALL_MODULES) == []
    assert learner.get_optimizers_for_module("a") == before


def test_an_optimizer_of_all_modules_that_is_registered_later_steps(make: Any, batch: Any) -> None:
    def none_shared(self: Any, module_id: str, module: Any) -> Any:
        return None if module_id == ALL_MODULES else SGD([module.head], lr=0.1)

    learner = make(**{**sharing(), "configure_optimizers_for_module": none_shared})
    encoder = learner.modules["a"].encoder
    before = encoder.weight.item()
    learner.update({"a": batch(1.0), "b": batch(1.0)}, timestep=1)
    assert encoder.weight.item() == before
    learner.register_optimizer(ALL_MODULES, "shared", SGD(encoder.parameters(), lr=1.0))
    learner.update({"a": batch(1.0), "b": batch(1.0)}, timestep=2)
    assert encoder.weight.item() != before


@pytest.mark.parametrize("where", ["build", "build_extra", "configure_optimizers_for_module"])
def test_a_module_that_cannot_be_added_leaves_the_learner_as_it_was(
    make: Any, batch: Any, where: str
) -> None:
    broken = []

    def check(module_id: str) -> None:
        if broken:
            raise ValueError(f"no {module_id}")

    hooks = {
        "build": lambda self, module_id: (check(module_id), Head(torch.nn.Linear(1, 1)))[1],
        "build_extra": lambda self, module_id: (check(module_id), torch.nn.Linear(1, 1))[1],
        "configure_optimizers_for_module": lambda self, module_id, module: (
            check(module_id),
            SGD(module.parameters(), lr=1.0),
        )[1],
    }
    learner = make(**{where: hooks[where]})
    space = learner.spaces["default"]
    broken.append(True)
    with pytest.raises(ValueError, match="no new"):
        learner.add_module("new", space, options={"scale": 2.0})
    assert list(learner.modules) == list(learner.spaces) == list(learner.extra) == ["default"]
    assert list(learner.members) == list(learner.trained) == ["default"]
    assert learner.calls.overrides("new") == {}
    broken.clear()
    learner.add_module("new", space)
    before = [param.clone() for param in learner.modules["new"].parameters()]
    learner.update({"new": batch(1.0)}, timestep=1)
    moved = zip(before, learner.modules["new"].parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in moved)


def test_additional_update_refuses_modules_that_there_are_not(make: Any, batch: Any) -> None:
    learner = make()
    with pytest.raises(RequestError, match="no module 'defualt'"):
        learner.additional_update({"default": batch(1.0)}, timestep=5, module_ids=["defualt"])
    with pytest.raises(RequestError, match="no module 'nobody'"):
        learner.additional_update({"nobody": batch(1.0)}, timestep=5)
    assert learner.timestep == 0


def test_no_minibatch_size_is_the_whole_batch(make: Any, batch: Any) -> None:
    learner = make()
    parts = learner.update_from_batch(batch(1.0, 2.0), minibatch_size=None, reduce_fn=None)
    assert len(parts) == 1


def test_metrics_registered_for_all_modules_are_reported_and_unknown_ids_refused(
    make: Any, batch: Any
) -> None:
    learner = make()
    learner.register_metric(ALL_MODULES, "games", 3)
    assert learner.update({"default": batch(1.0)}, timestep=1)[ALL_MODULES]["games"] == 3
    assert "games" not in learner.update({"default": batch(1.0)}, timestep=2)[ALL_MODULES]
    with pytest.raises(RequestError, match="no module 'defualt'"):
        learner.register_metric("defualt", "games", 3)


def test_gradients_that_are_applied_by_hand_stay_the_callers(make: Any, batch: Any) -> None:
    learner = make(learning={"max_grad_norm": 0.5})
    batches = {"default": batch(3.0)}
    gradients = learner.compute_gradients(
        learner.compute_loss(learner.forward_train(batches), batches)
    )
    before = {param: gradient.clone() for param, gradient in gradients.items()}
    learner.apply_gradients(gradients)
    assert learner.modules["default"].weight.item() == pytest.approx(2 - 0.1 * 0.5)
    for param, gradient in gradients.items():
        assert torch.equal(gradient, before[param])


def test_minibatches_of_a_smaller_module_cycle_where_that_is_asked_for(
    make: Any, batch: Any
) -> None:
    rows = {"a": batch(*[1.0] * 6), "b": batch(1.0, 1.0)}
    counts = []
    for cycle in (False, True):
        learner = make(ids=("a", "b"), learning={"cycle_minibatches": cycle})
        parts = learner.update_from_batch(rows, minibatch_size=2, num_iters=2, reduce_fn=None)
        counts.append([sum(name in part for part in parts) for name in ("a", "b")])
    assert counts == [[6, 2], [6, 6]]


def test_options_of_one_module_can_be_given_and_go_with_it(make: Any, batch: Any) -> None:
    learner = make(
        compute_loss_for_module=lambda self, fwd_out, config: fwd_out["out"].mean() * config.scale
    )
    learner.add_module("loud", like="default", options={"scale": 10.0})
    batches = {"default": batch(1.0), "loud": batch(1.0)}
    found = learner.update(batches, timestep=1)
    assert [float(found[name]["loss"]) for name in batches] == [2.0, 20.0]
    learner.set_options("loud", {"scale": 3.0})
    assert float(learner.update(batches, timestep=2)["loud"]["loss"]) == pytest.approx(3.0)
    with pytest.raises(RequestError, match="did you mean 'scale'"):
        learner.set_options("loud", {"scael": 3.0})
    learner.modules_to_train = {"loud"}
    learner.remove_module("loud")
    assert learner.modules_to_train == set()
    learner.add_module("loud", like="default")
    learner.modules_to_train = None
    assert float(learner.update({"loud": batch(1.0)}, timestep=3)["loud"]["loss"]) < 3.0


def test_a_batch_that_cannot_be_prepared_does_not_move_the_timestep(make: Any) -> None:
    def prepare(self: Any, batch: Any) -> Any:
        return {"y": batch["y"] + 1}

    learner = make(prepare_batch=prepare)
    with pytest.raises(KeyError):
        learner.update({"default": Batch({"x": torch.ones(2)})}, timestep=5)
    assert learner.timestep == 0
