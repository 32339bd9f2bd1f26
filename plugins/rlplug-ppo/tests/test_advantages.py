"""Advantages: numbers that can be checked by hand, and what must not change them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from rlplug_ppo import ActorCriticModule, PPOConfig
from rlplug_ppo.advantages import discounted_sums, evaluate_rollout, gae, vtrace
from torch import Tensor

from rlplug import Batch
from rlplug.errors import PluginError

WINDOW: dict[str, Any] = {"gamma": 0.5, "gae_lambda": 0.5, "bootstrap_truncated": True}


def test_a_termination_and_a_truncation_inside_a_rollout_by_hand() -> None:
    # Two episodes that end in the rollout, by failure and by a time limit, and one that goes on.
    found = gae(
        rewards=torch.tensor([1.0, 2.0, 4.0, 1.0, 0.0]),
        values=torch.tensor([2.0, 4.0, 2.0, 2.0, 4.0]),
        next_values=torch.tensor([4.0, 9.0, 2.0, 8.0, 8.0]),
        terminated=torch.tensor([False, True, False, False, False]),
        continues=torch.tensor([True, False, True, False, False]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    # errors: 1 + 0.5·4 - 2 = 1, 2 - 4 = -2 (terminated: no future); 4 + 1 - 2 = 3,
    # 1 + 4 - 2 = 3 (truncated: the future counts); 0 + 4 - 4 = 0 (cut by the rollout).
    assert found.tolist() == [1 + 0.25 * -2, -2.0, 3 + 0.25 * 3, 3.0, 0.0]


class Told(ActorCriticModule):
    """Takes the only number of an observation for the value of its state."""

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        values = batch["observations"][:, 0]
        return {"parameters": torch.zeros(len(values), 2), "values": values}


def module() -> Told:
    return Told(spaces.Box(-9, 9, (1,)), spaces.Discrete(2), PPOConfig())


def rollout(fragments: list[list[int]], finals: list[float], **columns: Any) -> Batch:
    rows = fragments[-1][1]
    given = {
        "observations": torch.arange(1.0, rows + 1).unsqueeze(1),
        "actions": torch.zeros(rows, dtype=torch.int64),
        "rewards": torch.ones(rows),
        "terminated": torch.zeros(rows, dtype=torch.bool),
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "fragments": torch.tensor(fragments),
        "final_observations": torch.tensor(finals).unsqueeze(1),
    }
    return Batch({**given, **columns})


def test_what_an_update_needs_is_computed_from_extended_fragments() -> None:
    ends = torch.tensor([False, True, False])
    found = evaluate_rollout(
        module(), rollout([[0, 2], [2, 3]], [8.0, 2.0], truncated=ends), **WINDOW
    )
    # errors: 1 + 0.5·2 - 1 = 1; 1 + 0.5·8 - 2 = 3 (truncated); 1 + 0.5·2 - 3 = -1 (cut).
    assert found["advantages"].tolist() == [1.75, 3.0, -1.0]
    assert found["returns"].tolist() == [2.75, 5.0, 2.0]
    assert found["values"].tolist() == [1.0, 2.0, 3.0]
    assert torch.allclose(found["log_prob"], torch.tensor(0.5).log())


def test_a_time_limit_can_be_taken_for_a_failure_as_in_old_code() -> None:
    ends = torch.tensor([False, True, False])
    batch = rollout([[0, 2], [2, 3]], [8.0, 2.0], truncated=ends)
    found = evaluate_rollout(module(), batch, **{**WINDOW, "bootstrap_truncated": False})
    assert found["advantages"].tolist() == [1 + 0.25 * -1, -1.0, -1.0]


def test_log_probabilities_that_acting_brought_are_kept() -> None:
    batch = rollout([[0, 2]], [8.0], log_prob=torch.tensor([-1.0, -2.0]))
    assert "log_prob" not in evaluate_rollout(module(), batch, **WINDOW)


def test_pieces_cut_for_a_memory_give_the_same_advantages_as_the_whole() -> None:
    # The final observation of a piece that goes on is the first one of the next piece.
    whole = rollout([[0, 4], [4, 6]], [7.0, 2.0])
    pieces = rollout(
        [[0, 2], [2, 4], [4, 6]],
        [3.0, 7.0, 2.0],
        continued=torch.tensor([True, False, False]),
    )
    expected = evaluate_rollout(module(), whole, **WINDOW)["advantages"]
    assert torch.allclose(evaluate_rollout(module(), pieces, **WINDOW)["advantages"], expected)


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0, 1)), min_size=1, max_size=40))
def test_sums_equal_those_of_a_loop_from_the_end(rows: list[tuple[float, float]]) -> None:
    terms = torch.tensor([term for term, _ in rows], dtype=torch.float64)
    decay = torch.tensor([*(decay for _, decay in rows[:-1]), 0.0], dtype=torch.float64)
    expected = terms.clone()
    for index in range(len(rows) - 2, -1, -1):
        expected[index] += decay[index] * expected[index + 1]
    assert torch.allclose(discounted_sums(terms, decay), expected)
    assert decay[-1] == 0.0


# -- V-trace -------------------------------------------------------------------------------------

STEPS: dict[str, Tensor] = {
    "rewards": torch.tensor([1.0, 1.0, 0.0, 2.0, 3.0]),
    "values": torch.tensor([2.0, 4.0, 2.0, 2.0, 1.0]),
    "next_values": torch.tensor([4.0, 2.0, 8.0, 1.0, 6.0]),
    "terminated": torch.tensor([False, False, False, False, True]),
    "continues": torch.tensor([True, True, False, True, False]),
}
"""Three steps that a time limit ends, then two that end by termination."""


def test_v_trace_by_hand() -> None:
    advantages, returns = vtrace(
        **STEPS,
        rho=torch.tensor([0.5, 2.0, 1.0, 0.5, 1.0]),
        c=torch.tensor([0.5, 1.0, 1.0, 0.5, 1.0]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    # TD errors: 1 + 2 - 2 = 1, 1 + 1 - 4 = -2, 0 + 4 - 2 = 2; 2 + 0.5 - 2 = 0.5, 3 - 1 = 2.
    # Targets minus values, from the end, with 0.25 for discount and lambda:
    # 2; 2·-2 + 0.25·1·2 = -3.5; 0.5·1 + 0.25·0.5·-3.5 = 0.0625.
    assert returns[:3].tolist() == [2.0625, 0.5, 4.0]
    # Advantages: the TD error and 0.25 of what follows.
    assert advantages[:3].tolist() == [1 + 0.25 * -3.5, -2 + 0.25 * 2, 2.0]
    # 2, then 0.5·0.5 + 0.25·0.5·2 = 0.5
    assert returns[3:].tolist() == [2.5, 3.0]
    assert advantages[3:].tolist() == [0.5 + 0.25 * 2, 2.0]


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_v_trace_of_what_was_chosen_by_the_same_policy_is_gae(gae_lambda: float) -> None:
    window = {"gamma": 0.9, "gae_lambda": gae_lambda}
    advantages, returns = vtrace(**STEPS, rho=torch.ones(5), c=torch.ones(5), **window)
    expected = gae(**STEPS, **window)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, STEPS["values"] + expected)


OLDER = {**WINDOW, "truncation": (1.0, 1.0)}


def test_v_trace_divides_by_the_probability_of_the_weights_that_acted() -> None:
    # The policy is uniform over two actions, the one that acted chose with 0.5, 1 and 0.25.
    acted = torch.tensor([0.5, 1.0, 0.25]).log()
    batch = rollout([[0, 3]], [4.0], log_prob=acted)
    found = evaluate_rollout(module(), batch, **{**WINDOW, "truncation": (1.5, 1.0)})
    # TD errors of 1 + 0.5·(2, 3, 4) - (1, 2, 3) = 1, 0.5, 0; ratios 1, 0.5, 2; 2 is cut to 1.5.
    assert found["rho"].tolist() == pytest.approx([1.0, 0.5, 1.5])
    assert found["advantages"].tolist() == pytest.approx([1 + 0.25 * 0.25, 0.5, 0.0])
    assert found["returns"].tolist() == pytest.approx([2.0625, 2.25, 3.0])
    # The ratio of the loss is to what acted.
    assert "log_prob" not in found


def test_v_trace_evaluates_again_what_acting_brought() -> None:
    batch = rollout(
        [[0, 2]],
        [8.0],
        log_prob=torch.full((2,), 0.5).log(),
        values=torch.tensor([7.0, 7.0]),
        parameters=torch.ones(2, 2),
    )
    found = evaluate_rollout(module(), batch, **OLDER)
    assert found["values"].tolist() == [1.0, 2.0]
    assert found["parameters"].tolist() == [[0.0, 0.0]] * 2


def test_v_trace_needs_log_probabilities_of_acting() -> None:
    with pytest.raises(PluginError, match=r"Told\.forward_exploration returned none") as failure:
        evaluate_rollout(module(), rollout([[0, 2]], [8.0]), **OLDER)
    assert "advantages=gae" in str(failure.value)
