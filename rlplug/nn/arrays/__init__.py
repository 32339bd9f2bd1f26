"""Small networks and their losses on NumPy: torch's interface, with gradients; and acting."""

# Gives arrays their methods.
import rlplug.nn.arrays.reductions  # noqa: F401
from rlplug.nn.arrays.array import Array, UnsupportedError, accumulate, recorded, recording, unwrap
from rlplug.nn.arrays.mlp import (
    MLP,
    ArrayForward,
    Chain,
    FrozenWeights,
    NumpyArray,
    Plan,
    Stateless,
    Views,
    plan_arrays,
    run_plain,
    sigmoid,
)
from rlplug.nn.arrays.tape import LARGEST_MINIBATCH, ArrayBatch, Tape

__all__ = [
    "LARGEST_MINIBATCH",
    "MLP",
    "Array",
    "ArrayBatch",
    "ArrayForward",
    "Chain",
    "FrozenWeights",
    "NumpyArray",
    "Plan",
    "Stateless",
    "Tape",
    "UnsupportedError",
    "Views",
    "accumulate",
    "plan_arrays",
    "recorded",
    "recording",
    "run_plain",
    "sigmoid",
    "unwrap",
]
