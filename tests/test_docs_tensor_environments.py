"""The commands, options and code of docs/tensor-environments.md are those that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from gymnasium.vector import AutoresetMode

import rlplug as rl
from examples.tensor_tasks import TensorCartPole
from rlplug.config.sections import ComputeSection

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "tensor-environments.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
LINES = [re.split(r"\s{3,}", line)[0] for block in BLOCKS for line in block.splitlines()]
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("--set")])
def test_every_option_of_the_page_is_accepted(line: str, rlplug: Command, home: Path) -> None:
    # There is no second GPU here.
    given = shlex.split(line.replace("cuda:1", "cpu"))
    env = "examples.tensor_tasks:TensorCartPole"
    done = rlplug("run", "--algo", "ppo", "--env", env, *given, "--dry-run")
    assert done.code == 0, done.err


def test_the_command_of_the_page_is_accepted(rlplug: Command, home: Path) -> None:
    (command,) = [line for line in LINES if line.startswith("rlplug")]
    done = rlplug(*shlex.split(command)[1:], "--dry-run")
    assert done.code == 0, done.err


def test_every_option_of_compilation_is_on_the_page() -> None:
    options = [name for name in attrs.fields_dict(ComputeSection) if name.startswith("compile")]
    assert all(f"compute.{name}=" in PAGE for name in options)


def test_the_modes_of_the_page_are_those_of_gymnasium() -> None:
    assert set(re.findall(r"^\| `(\w+)`", PAGE, re.M)) == {mode.name for mode in AutoresetMode}


def test_the_module_of_the_page_acts_on_tensors(home: Path) -> None:
    names: dict[str, Any] = {"rlplug": rl, "torch": torch}
    exec(compile(CODE[1], "tensor-environments.md", "exec"), names)
    module = names["MyModule"]()
    module.network = torch.nn.Linear(4, 2)
    made = TensorCartPole(5)
    act = rl.ActInput(made.reset(seed=0)[0], random=torch.Generator(), in_torch=True)
    made.step(module.forward_exploration(act).actions)
    assert compile(CODE[0], "tensor-environments.md", "exec")


def test_the_script_of_the_page_is_there() -> None:
    for script, options in re.findall(r"`python (benchmarks/\w+\.py)([^`]*)`", PAGE):
        text = (ROOT / script).read_text(encoding="utf-8")
        assert all(f'"{option}"' in text for option in re.findall(r"--\w+", options))
