"""Weights of other programs: names with prefixes, files, and what does not fit."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from rlplug import load_weights
from rlplug.checkpoint.weights import NotLoaded
from rlplug.errors import RequestError


def network(value: float) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for one in made.state_dict().values():
            one.fill_(value)
    return made


def is_all(module: nn.Module, value: float) -> bool:
    return all(bool((one == value).all()) for one in module.state_dict().values())


# Raised inside of torch where torch.compile imports its parts.
COMPILES = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.module."])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".ckpt"])
def test_weights_are_read_from_files_with_and_without_prefixes(
    tmp_path: Path, prefix: str, suffix: str
) -> None:
    file = tmp_path / f"weights{suffix}"
    weights = {prefix + name: one for name, one in network(2).state_dict().items()}
    if suffix == ".safetensors":
        save_file(weights, file)
    else:
        torch.save({"state_dict": weights, "epoch": 3} if suffix == ".ckpt" else weights, file)
    module = network(1)
    assert load_weights(module, file) == NotLoaded()
    assert is_all(module, 2)


@COMPILES
def test_weights_of_a_compiled_and_wrapped_network_fit_the_plain_one_and_the_other_way_round() -> (
    None
):
    compiled = torch.compile(nn.DataParallel(network(2)))
    assert next(iter(compiled.state_dict())) == "_orig_mod.module.0.weight"
    plain = network(1)
    load_weights(plain, compiled.state_dict())
    assert is_all(plain, 2)
    load_weights(compiled, network(3).state_dict())  # type: ignore[arg-type] # it is a module
    assert is_all(compiled, 3)  # type: ignore[arg-type] # it is a module


def test_of_tied_parameters_one_is_enough(tmp_path: Path) -> None:
    def tied(value: float) -> nn.Sequential:
        made = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        made[1].weight = made[0].weight
        with torch.no_grad():
            for one in made.parameters():
                one.fill_(value)
        return made

    save_model(tied(2), str(tmp_path / "tied.safetensors"))
    module = tied(1)
    assert load_weights(module, tmp_path / "tied.safetensors") == NotLoaded()
    assert is_all(module, 2)


def unlike() -> dict[str, Any]:
    """One weight of another shape, one of another type, one missing, one unexpected."""
    weights: dict[str, Any] = dict(network(2).state_dict())
    weights["0.weight"] = torch.ones(3, 4)
    weights["0.bias"] = torch.ones(3, dtype=torch.bool)
    del weights["1.running_mean"]
    return {**weights, "head.weight": torch.ones(1)}


def test_all_that_does_not_fit_is_named_at_once_and_nothing_is_loaded() -> None:
    module = network(1)
    with pytest.raises(RequestError) as raised:
        load_weights(module, unlike())
    assert str(raised.value).splitlines() == [
        "the weights of the state dict do not fit Sequential:",
        "  missing: 1.running_mean",
        "  unexpected: head.weight",
        "  do not fit: 0.weight ((3, 4) there, (3, 2) here), 0.bias (torch.bool there, "
        "torch.float32 here)",
        "  try: weights of the same network, or strict=False, which loads what fits",
    ]
    assert is_all(module, 1)


def test_without_strict_what_fits_is_loaded_and_the_rest_returned() -> None:
    module = network(1)
    rest = load_weights(module, unlike(), strict=False)
    assert (rest.missing, rest.unexpected) == (("1.running_mean",), ("head.weight",))
    assert list(rest.unfit) == ["0.weight", "0.bias"]
    values = {name: float(one.double().mean()) for name, one in module.state_dict().items()}
    assert values == {
        "0.weight": 1.0,
        "0.bias": 1.0,
        "1.weight": 2.0,
        "1.bias": 2.0,
        "1.running_mean": 1.0,
        "1.running_var": 2.0,
        "1.num_batches_tracked": 2.0,
    }


class Code:
    """Would run code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps(Code()), "cannot be read"),
        (b"nonsense", "cannot be read"),
        (b"", "cannot be read"),
        (None, "cannot be read: .*[Nn]o such file"),
    ],
)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_what_holds_no_tensors_is_refused_and_never_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, said: str, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"weights{suffix}"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RequestError, match=said):
        load_weights(network(1), file)
    assert not Path("unpickled").exists()


def test_a_file_of_something_else_says_what_it_holds(tmp_path: Path) -> None:
    torch.save({"optimizer": {}, "epoch": 3}, tmp_path / "other.pt")
    with pytest.raises(RequestError, match="holds no state dict, but optimizer, epoch"):
        load_weights(network(1), tmp_path / "other.pt")
