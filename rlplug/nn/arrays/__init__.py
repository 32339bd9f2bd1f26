"""Small networks and their losses on NumPy: torch's interface, with gradients; and acting."""

# Gives arrays their methods.
import rlplug.nn.arrays.dispatch  # noqa: F401
from rlplug.nn.arrays.acting import (
    ArrayForward,
    Chain,
    FrozenWeights,
    NoArraysError,
    NumpyArray,
    Plan,
    Stateless,
    Views,
    linear_in_numpy,
    plan_arrays,
    sigmoid,
)
from rlplug.nn.arrays.array import Array, UnsupportedError, unwrap
from rlplug.nn.arrays.batch import ArrayBatch
from rlplug.nn.arrays.functional import categorical_score, squashed_draw
from rlplug.nn.arrays.stack import run_layers, run_stack
from rlplug.nn.arrays.tape import LARGEST_MINIBATCH, Tape

__all__ = [
    "LARGEST_MINIBATCH",
    "Array",
    "ArrayBatch",
    "ArrayForward",
    "Chain",
    "FrozenWeights",
    "NoArraysError",
    "NumpyArray",
    "Plan",
    "Stateless",
    "Tape",
    "UnsupportedError",
    "Views",
    "categorical_score",
    "linear_in_numpy",
    "plan_arrays",
    "run_layers",
    "run_stack",
    "sigmoid",
    "squashed_draw",
    "unwrap",
]
