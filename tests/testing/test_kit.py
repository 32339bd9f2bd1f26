"""The kit as plugin authors meet it, and its environments."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces

from examples.tensor_tasks import TensorCartPole, TensorPendulum
from rlplug.testing import CheckFailed, DoesNotApply, Subject, checks_for
from rlplug.testing.cases import CASES, Case, RandomEnv
from rlplug.testing.checks import CHECKS, check_named

# -- kit -------------------------------------------------------------------------------------------


BROKEN = """
import random
import torch
from rlplug.testing.algorithms import PolicyGradient

print("hello")
random.seed(1)

class Broken(PolicyGradient):
    def compute_loss_for_module(self, config, batch, fwd_out):
        return {"loss": fwd_out["values"].detach().mean() + 0 * fwd_out["log_probs"].mean()}

class Hashes(PolicyGradient):
    def build(self, observation_space, action_space, config):
        module = super().build(observation_space, action_space, config)
        with torch.no_grad():
            module.actor[0].bias += hash("rlplug") % 1000
        return module
"""

CONFORMANCE = """
import broken_plugin
from rlplug.testing import AddOnConformance, AlgorithmConformance

class TestLinUCB(AlgorithmConformance):
    name = "linucb"

class TestBroken(AlgorithmConformance):
    plugin = broken_plugin.Broken
    options = {"width": 8}
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with plugins that misbehave, importable by its name."""
    (tmp_path / "broken_plugin.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    import broken_plugin

    yield broken_plugin
    del sys.modules["broken_plugin"]


def pytest_in(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout


def test_every_check_has_a_name_of_its_own_and_a_sentence() -> None:
    names = [one.name for one in CHECKS]
    assert len(names) == len(set(names))
    assert all(one.description.endswith(".") for one in CHECKS)


def test_algorithms_and_add_ons_have_their_own_checks_and_slow_ones_wait_to_be_asked() -> None:
    algorithm, addon = (
        {one.name for one in checks_for(Subject.of(name))} for name in ("sac", "ema")
    )
    assert "masks_are_respected" in algorithm - addon
    assert "bonus_is_larger_for_what_is_new" in addon - algorithm
    assert "state_is_complete" in algorithm & addon
    assert "values_include_entropy" in algorithm
    slow = {one.name for one in checks_for(Subject.of("sac"), slow=True)} - algorithm
    assert slow
    assert all(name.startswith("variants_solve_") for name in slow)


def test_an_exception_in_a_plugin_is_reported_with_its_line(broken: Any) -> None:
    class Raises(broken.Broken):  # type: ignore[misc, name-defined] # made at run time
        def prepare_batch(self) -> Any:
            raise ArithmeticError("planted")

    with pytest.raises(CheckFailed) as caught:
        check_named("state_is_complete")(Subject.of(Raises))
    assert caught.value.found.startswith("ArithmeticError: planted (raised in hook 'prepare_batch'")
    assert caught.value.found.endswith(" (in 'box, discrete')")
    assert caught.value.look_at.startswith("tests/testing/test_kit.py:")


def test_an_exception_is_reported_with_the_options_that_lead_to_it(broken: Any) -> None:
    class Raises(broken.Broken):  # type: ignore[misc, name-defined] # made at run time
        def prepare_batch(self, config: Any) -> Any:
            if config.width == 7:
                raise ArithmeticError("planted")

    with pytest.raises(CheckFailed) as caught:
        check_named("inference_is_not_random")(Subject.of(Raises, variants=[{"width": 7}]))
    assert caught.value.found.endswith(" (in 'box, discrete' with width = 7)")


def test_an_import_that_prints_is_found(broken: Any) -> None:
    with pytest.raises(CheckFailed, match="printed: 'hello'"):
        check_named("importing_is_quiet")(Subject.of(broken.Broken))


def test_weights_that_depend_on_the_process_are_found(broken: Any) -> None:
    with pytest.raises(CheckFailed, match="the same weights in a spawned process"):
        check_named("another_process_gives_the_same_numbers")(Subject.of(broken.Hashes))


def test_a_class_that_no_process_can_import_is_passed_by(broken: Any) -> None:
    class Local(broken.Broken):  # type: ignore[misc, name-defined] # made at run time
        """Defined in a function."""

    with pytest.raises(DoesNotApply, match="no other process can import it"):
        check_named("importing_is_quiet")(Subject.of(Local))


def test_a_plugin_whose_own_import_fails_elsewhere_is_told(broken: Any, tmp_path: Path) -> None:
    (tmp_path / "broken_plugin.py").write_text(f"import nosuch_package\n{BROKEN}")
    said = r"(?s)could not be rebuilt in another process.*No module named 'nosuch_package'"
    with pytest.raises(CheckFailed, match=said):
        check_named("importing_is_quiet")(Subject.of(broken.Broken))


def test_conformance_classes_give_one_test_per_check(broken: Any, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CONFORMANCE)
    chosen = "options or hooks_are or every_parameter or fragments or compiled"
    said = pytest_in(tmp_path, "test_mine.py", "-v", "-k", chosen)
    assert "test_mine.py::TestLinUCB::test_every_parameter_learns PASSED" in said
    assert "test_mine.py::TestLinUCB::test_fragments_do_not_leak SKIPPED" in said
    assert "test_mine.py::TestBroken::test_every_parameter_learns FAILED" in said
    assert "found       'actor.0.weight' got no gradient: no loss reaches it" in said
    assert "test_compiled" not in said


def test_pytest_checks_what_is_installed_by_its_name(tmp_path: Path) -> None:
    said = pytest_in(tmp_path, "--rlplug", "linucb", "-v", "-k", "hooks_are_well or found_once")
    assert "test_conforms[linucb-is_found_once] PASSED" in said
    assert "test_conforms[linucb-hooks_are_well_formed] PASSED" in said
    assert "2 passed" in said


def test_the_pytest_plugin_costs_nothing_where_it_is_not_used() -> None:
    code = (
        "import sys, rlplug.testing.pytest_plugin; "
        "assert not {'torch', 'gymnasium', 'mlflow', 'attrs'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_line_checks_without_pytest(rlplug: Callable[..., Any]) -> None:
    done = rlplug("plugins", "check", "linucb", "--only", "fragments_do_not_leak", "--only")
    assert (done.code, "requires an argument" in done.err) == (2, True)
    chosen = ["hooks_are_well_formed", "fragments_do_not_leak"]
    done = rlplug("plugins", "check", "linucb", "--only", chosen[0], "--only", chosen[1])
    assert done.code == 0
    assert "algorithm 'linucb' (rlplug-linucb 0.1.0)" in done.out
    assert "ok      hooks are well formed" in done.out
    assert "-       fragments do not leak: its updates look at no next" in done.out
    assert "1 passed, 1 does not apply" in done.out
    done = rlplug("plugins", "check", "linucb", "--only", chosen[0], "--json")
    (outcome,) = json.loads(done.out)["linucb"]["checks"]
    assert (outcome["check"], outcome["status"]) == (chosen[0], "passed")


def test_a_failed_check_leaves_with_code_1(rlplug: Callable[..., Any], installed: Path) -> None:
    done = rlplug("plugins", "check", "typo", "--only", "hooks_are_well_formed")
    assert done.code == 1
    assert "FAILED  hooks are well formed" in done.out
    assert "unknown hook 'compute_loss_for_modul'" in done.out


def test_an_unknown_check_is_refused_with_a_guess(rlplug: Callable[..., Any]) -> None:
    done = rlplug("plugins", "check", "linucb", "--only", "masks_are_respectd")
    assert done.code == 2
    assert "Did you mean 'masks_are_respected'?" in done.err
    assert "fragments_do_not_leak" not in done.err


# -- cases -----------------------------------------------------------------------------------------


NAMES = [f"{case.name}{', one step' * case.one_step}" for case in CASES]


def mask_of(observation: Any, info: Any) -> Any:
    inside = isinstance(observation, dict) and "action_mask" in observation
    return observation["action_mask"] if inside else info.get("action_mask")


def boxes(space: Any) -> list[spaces.Box]:
    """All boxes of a space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return [box for part in parts for box in boxes(part)]
    return [space] if isinstance(space, spaces.Box) else []


# -- cases -----------------------------------------------------------------------------------------


def test_cases_are_told_apart_by_name_and_length() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {case.one_step for case in CASES} == {False, True}
    kinds = {type(case.action_space) for case in CASES if not case.one_step}
    assert kinds == {spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary}


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_case_has_the_spaces_masks_and_lengths_that_it_says(case: Case) -> None:
    env = case.make()
    observation, info = env.reset(seed=3)
    numpy.testing.assert_equal(observation, case.make().reset(seed=3)[0])
    ends, lengths = [], [0]
    for _ in range(20):
        assert case.observation_space.contains(observation)
        mask = mask_of(observation, info)
        assert (mask is not None) == case.masked
        action: Any = env.action_space.sample() if mask is None else int(mask.argmax())
        if mask is not None:
            # As many as there are actions, of which at least one may be chosen.
            assert (mask.shape, mask[action]) == ((case.action_space.n,), 1)
        observation, reward, terminated, truncated, info = env.step(action)
        assert 0 <= float(reward) < 1
        lengths[-1] += 1
        if terminated or truncated:
            ends.append((terminated, truncated))
            lengths.append(0)
            observation, info = env.reset()
    # Longer episodes are truncated and terminate in turn.
    assert lengths[:-1] == ([1] * 20 if case.one_step else [5] * 4)
    assert ends == ([(True, False)] * 20 if case.one_step else [(False, True), (True, False)] * 2)


def test_actions_of_other_shapes_and_masked_ones_are_refused() -> None:
    env = RandomEnv(spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(3), masked=True)
    _, info = env.reset(seed=0)
    while info["action_mask"].all():
        _, info = env.reset()
    masked = int(info["action_mask"].argmin())
    with pytest.raises(ValueError, match=f"action {masked} is masked: "):
        env.step(masked)
    with pytest.raises(ValueError, match="is not in Discrete"):
        env.step(numpy.array([0]))
    env = RandomEnv(spaces.Box(0.0, 1.0, (1,)), spaces.MultiBinary(2), masked=True)
    assert env.reset(seed=0)[1] == {"action_mask": None}


# -- tensors ---------------------------------------------------------------------------------------


def start(env: Any, states: torch.Tensor) -> None:
    """Go on from these states, as Gymnasium's environments have them."""
    env.reset(seed=0)
    assert env._state.shape == states.shape
    env._state = states.clone()


def test_cart_poles_move_and_fall_as_those_of_gymnasium() -> None:
    generator = torch.Generator().manual_seed(0)
    states = (torch.rand(64, 4, generator=generator) * 2 - 1) * torch.tensor([2.4, 1, 0.21, 1])
    actions = torch.randint(2, (64,), generator=generator)
    env = TensorCartPole(64)
    start(env, states)
    _, rewards, terminated, truncated, infos = env.step(actions)
    single = gymnasium.make("CartPole-v1").unwrapped
    for index, state in enumerate(states.double().numpy()):
        single.reset(seed=0)
        single.state = state  # type: ignore[attr-defined] # where it keeps it
        observed, reward, fallen, _, _ = single.step(int(actions[index]))
        assert infos["final_obs"][index].numpy() == pytest.approx(observed, abs=1e-6)
        assert (rewards[index].item(), terminated[index].item()) == (reward, fallen)
    assert terminated.any()
    assert not terminated.all()
    assert not truncated.any()


def test_pendulums_move_and_cost_as_those_of_gymnasium() -> None:
    generator = torch.Generator().manual_seed(0)
    states = (torch.rand(64, 2, generator=generator) * 2 - 1) * torch.tensor([7.0, 8.0])
    torques = torch.rand(64, 1, generator=generator) * 6 - 3
    env = TensorPendulum(64)
    start(env, states)
    observed, rewards, terminated, _, _ = env.step(torques)
    assert not terminated.any()
    single: Any = gymnasium.make("Pendulum-v1").unwrapped
    for index, state in enumerate(states.double().numpy()):
        single.reset(seed=0)
        single.state = state
        expected, reward, *_ = single.step(torques[index].numpy())
        assert observed[index].numpy() == pytest.approx(expected, abs=1e-5)
        assert rewards[index].item() == pytest.approx(reward, abs=1e-4)


@pytest.mark.parametrize(
    ("env", "bounds"), [(TensorCartPole(4096), (0.05,) * 4), (TensorPendulum(4096), (math.pi, 1.0))]
)
def test_episodes_start_as_those_of_gymnasium(env: Any, bounds: tuple[float, ...]) -> None:
    env.reset(seed=3)
    first = env._state
    limits = torch.tensor(bounds)
    assert (first.abs() <= limits).all()
    # Uniform: from one end to the other, with the mean in the middle.
    assert (first.max(0).values / limits).tolist() == pytest.approx([1] * len(bounds), abs=0.01)
    assert (first.min(0).values / limits).tolist() == pytest.approx([-1] * len(bounds), abs=0.01)
    assert (first.mean(0) / limits).tolist() == pytest.approx([0] * len(bounds), abs=0.05)
    env.reset(seed=3)
    assert env._state.equal(first)
    env.reset()
    assert not env._state.equal(first)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_episodes_end_at_their_longest_and_start_anew(autoreset: str) -> None:
    env = TensorPendulum(2, max_episode_steps=3, autoreset=autoreset)
    env.reset(seed=0)
    ended, paid = [], []
    for _ in range(8):
        _, rewards, terminated, truncated, infos = env.step(torch.ones(2, 1))
        assert not terminated.any()
        assert ("final_obs" in infos) == (autoreset == "same_step")
        ended.append(truncated.all().item())
        paid.append(rewards.ne(0).all().item())
    if autoreset == "same_step":
        assert ended == [False, False, True] * 2 + [False, False]
        assert all(paid)
    else:
        # The step that resets is none: it has no reward and no end.
        assert ended == [False, False, True, False] * 2
        assert paid == [True, True, True, False] * 2
