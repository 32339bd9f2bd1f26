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
    with pytest.raises(PluginError, match=r"'encoder\.weight', which other modules share"):
        make(**known)


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


def test_modules_to_train_that_the_learner_does_not_have_are_refused(make: Any, batch: Any) -> None:
    learner = make(ids=("left", "right"))
    learner.modules_to_train = {"lfet"}
    with pytest.raises(RequestError, match=r"no module 'lfet'\. Did you mean 'left'\?"):
        learner.update({"left": batch(1.0)}, timestep=1)


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


def test_columns_that_are_no_batch_are_refused(make: Any) -> None:
    with pytest.raises(RequestError, match="'x' is a Tensor") as raised:
        make().update_from_batch({"x": torch.ones(2)})
    assert "try: Batch(columns)" in str(raised.value)


def test_a_learner_that_is_not_built_says_so(make: Any, batch: Any) -> None:
    with pytest.raises(RequestError, match=r"none: call build\(\) first"):
        make(built=False).update({"default": batch(1.0)}, timestep=1)


def test_columns_of_different_lengths_are_refused_by_name(make: Any) -> None:
    rows = Batch({"x": torch.ones(3), "rewards": torch.ones(2)})
    with pytest.raises(RequestError, match=r"'rewards' .* shape \(2,\), but 'x' has 3 rows"):
        make().update({"default": rows}, timestep=1)


def test_less_than_one_pass_is_refused(make: Any, batch: Any) -> None:
    with pytest.raises(RequestError, match="num_iters must be at least 1, got 0"):
        make().update({"default": batch(1.0)}, timestep=1, num_iters=0)


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
    losses = [round(float(part["default"]["loss"]), 4) for part in parts[:-1]]
    assert losses == [2.0, 1.9, 1.8]
    assert float(parts[-1]["default"]["loss"]) == pytest.approx(1.9)
    assert learner.timestep == 1
    last = learner.update_from_batch(batch(1.0), num_iters=2, reduce_fn=lambda parts: parts[0])
    assert float(last["default"]["loss"]) == pytest.approx(1.7)


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
    with pytest.raises(RequestError, match=r"have different extras: \['x'\] and \[\]"):
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
    own = apart.filter_param_dict_for_optimizer(gradients, apart.get_optimizer("b"))
    assert [float(gradient) for gradient in own.values()] == [5.0]
    assert apart.get_param_ref(apart.get_parameters("b")[0]) in own
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
