"""Small networks and their losses on NumPy: torch's interface, with gradients; and acting."""

# Gives arrays their methods.
import rlplug.nn.arrays.reductions  # noqa: F401
from rlplug.nn.arrays.array import Array, UnsupportedError, accumulate, recorded, recording, unwrap
from rlplug.nn.arrays.elementwise import sigmoid
from rlplug.nn.arrays.mlp import MLP, NumpyArray
from rlplug.nn.arrays.tape import LARGEST_MINIBATCH, ArrayBatch, Tape
from rlplug.nn.arrays.views import ArrayForward, FrozenWeights, Views, run_plain

__all__ = [
    "LARGEST_MINIBATCH",
    "MLP",
    "Array",
    "ArrayBatch",
    "ArrayForward",
    "FrozenWeights",
    "NumpyArray",
    "Tape",
    "UnsupportedError",
    "Views",
    "accumulate",
    "recorded",
    "recording",
    "run_plain",
    "sigmoid",
    "unwrap",
]
