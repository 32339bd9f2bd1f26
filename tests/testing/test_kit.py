"""The kit as plugin authors meet it: reports, pytest, the command line, other processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplug.testing import (
    CheckFailed,
    DoesNotApply,
    Subject,
    checks_for,
)
from rlplug.testing.checks import CHECKS, check_named

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
    assert "neutral_options_change_nothing" in addon - algorithm
    assert "state_is_complete" in algorithm & addon
    assert "values_include_entropy" in algorithm
    slow = {one.name for one in checks_for(Subject.of("sac"), slow=True)} - algorithm
    assert {name for name in slow if "solve" not in name} == {
        "compiled_equals_uncompiled",
        "learned_temperature_keeps_choices_open",
        "values_include_entropy_of_squashed_actions",
    }


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
    with pytest.raises(CheckFailed, match="it printed 'hello'"):
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
    assert "found       'actor.0.weight' got none: no loss reaches it" in said
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
