"""Which function of torch is which of ours, and the methods and operators of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from rlplug.nn.arrays import (
    activations,
    conversions,
    elementwise,
    indexing,
    reductions,
    selection,
    shapes,
)
from rlplug.nn.arrays import functional as layers
from rlplug.nn.arrays.array import Array, UnsupportedError

__all__: list[str] = []

Function = Callable[..., Any]


def _no_inplace(function: Function) -> Function:
    """For layers that may be asked to work in place."""

    def out_of_place(*args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        if inplace:
            raise UnsupportedError("layers that work in place")
        return function(*args, **kwargs)

    return out_of_place


def _relu(input: Array, inplace: bool = False) -> Array:
    if inplace:
        raise UnsupportedError("layers that work in place")
    return activations.relu(input)


def _softmax(input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Array:
    if dim is None:
        raise UnsupportedError("softmax without a dim")
    return reductions.softmax(input, dim, dtype)


def _log_softmax(input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Array:
    if dim is None:
        raise UnsupportedError("log_softmax without a dim")
    return reductions.log_softmax(input, dim, dtype)


def _refused(x: Array, *_: Any, **__: Any) -> Any:
    raise UnsupportedError("a change in place")


def _reflected(function: Function) -> Function:
    return lambda x, y: function(y, x)


def _method(function: Function) -> Function:
    return lambda *args, **kwargs: function(*args, **kwargs)


equal = elementwise.comparison(numpy.equal)
not_equal = elementwise.comparison(numpy.not_equal)
less = elementwise.comparison(numpy.less)
less_equal = elementwise.comparison(numpy.less_equal)
greater = elementwise.comparison(numpy.greater)
greater_equal = elementwise.comparison(numpy.greater_equal)
both = elementwise.comparison(numpy.bitwise_and)
either = elementwise.comparison(numpy.bitwise_or)
exclusive_or = elementwise.comparison(numpy.bitwise_xor)

_OPERATORS: dict[str, Function] = {
    "__add__": elementwise.add,
    "__sub__": elementwise.subtract,
    "__mul__": elementwise.multiply,
    "__truediv__": elementwise.divide,
    "__floordiv__": elementwise.floor_divide,
    "__mod__": elementwise.remainder,
    "__pow__": elementwise.power,
    "__matmul__": layers.matmul,
    "__and__": both,
    "__or__": either,
    "__xor__": exclusive_or,
}

_ALONE: dict[str, Function] = {
    "__neg__": elementwise.negative,
    "__abs__": elementwise.absolute,
    "__invert__": elementwise.predicate(numpy.invert),
    "__eq__": equal,
    "__ne__": not_equal,
    "__lt__": less,
    "__le__": less_equal,
    "__gt__": greater,
    "__ge__": greater_equal,
    "__getitem__": indexing.getitem,
    "__bool__": lambda x: bool(conversions.item(x)),
    "__float__": lambda x: float(conversions.item(x)),
    "__int__": lambda x: int(conversions.item(x)),
    "__index__": conversions.index,
}

_BOTH: dict[str, Function] = {
    # Functions of torch that are methods of tensors as well.
    "abs": elementwise.absolute,
    "absolute": elementwise.absolute,
    "add": elementwise.add,
    "all": reductions.all_true,
    "amax": reductions.amax,
    "amin": reductions.amin,
    "any": reductions.any_true,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "atanh": elementwise.atanh,
    "arctanh": elementwise.atanh,
    "bitwise_and": both,
    "bitwise_not": _ALONE["__invert__"],
    "bitwise_or": either,
    "bitwise_xor": exclusive_or,
    "broadcast_to": shapes.broadcast_to,
    "chunk": shapes.chunk,
    "clamp": selection.clamp,
    "clamp_max": lambda x, max: selection.clamp(x, max=max),
    "clamp_min": lambda x, min: selection.clamp(x, min=min),
    "clip": selection.clamp,
    "clone": conversions.clone,
    "cos": elementwise.cos,
    "cumsum": reductions.cumsum,
    "detach": conversions.detach,
    "div": elementwise.divide,
    "divide": elementwise.divide,
    "eq": equal,
    "exp": elementwise.exp,
    "expm1": elementwise.expm1,
    "flatten": shapes.flatten,
    "flip": shapes.flip,
    "floor": elementwise.floor,
    "floor_divide": elementwise.floor_divide,
    "gather": indexing.gather,
    "ge": greater_equal,
    "greater": greater,
    "greater_equal": greater_equal,
    "gt": greater,
    "index_select": indexing.index_select,
    "is_floating_point": conversions.is_floating_point,
    "isfinite": elementwise.predicate(numpy.isfinite),
    "isinf": elementwise.predicate(numpy.isinf),
    "isnan": elementwise.predicate(numpy.isnan),
    "le": less_equal,
    "less": less,
    "less_equal": less_equal,
    "log": elementwise.log,
    "log1p": elementwise.log1p,
    "log_softmax": reductions.log_softmax,
    "logical_and": lambda x, y: both(_truth(x), _truth(y)),
    "logical_not": elementwise.logical_not,
    "logical_or": lambda x, y: either(_truth(x), _truth(y)),
    "logical_xor": lambda x, y: exclusive_or(_truth(x), _truth(y)),
    "logsumexp": reductions.logsumexp,
    "lt": less,
    "masked_fill": selection.masked_fill,
    "matmul": layers.matmul,
    "max": reductions.x_max,
    "maximum": selection.maximum,
    "mean": reductions.mean,
    "min": reductions.x_min,
    "minimum": selection.minimum,
    "mm": layers.matmul,
    "mv": layers.matmul,
    "movedim": shapes.movedim,
    "mul": elementwise.multiply,
    "multiply": elementwise.multiply,
    "nan_to_num": selection.nan_to_num,
    "ne": not_equal,
    "neg": elementwise.negative,
    "negative": elementwise.negative,
    "norm": reductions.norm,
    "not_equal": not_equal,
    "numel": conversions.numel,
    "permute": shapes.permute,
    "pow": elementwise.power,
    "reciprocal": elementwise.reciprocal,
    "relu": activations.relu,
    "remainder": elementwise.remainder,
    "reshape": shapes.reshape,
    "round": elementwise.rounded,
    "rsqrt": elementwise.rsqrt,
    "scatter_add": indexing.scatter_add,
    "sigmoid": activations.sigmoid,
    "sign": elementwise.sign,
    "sgn": elementwise.sign,
    "sin": elementwise.sin,
    "softmax": reductions.softmax,
    "split": shapes.split,
    "sqrt": elementwise.sqrt,
    "square": elementwise.square,
    "squeeze": shapes.squeeze,
    "std": reductions.std,
    "sub": elementwise.subtract,
    "subtract": elementwise.subtract,
    "sum": reductions.total,
    "swapaxes": shapes.transpose,
    "t": shapes.t,
    "take_along_dim": indexing.take_along_dim,
    "tanh": activations.tanh,
    "transpose": shapes.transpose,
    "true_divide": elementwise.divide,
    "unbind": shapes.unbind,
    "unflatten": shapes.unflatten,
    "unsqueeze": shapes.unsqueeze,
    "var": reductions.var,
}

_METHODS: dict[str, Function] = {
    # What only tensors have.
    "bool": conversions.caster(torch.bool),
    "contiguous": conversions.same,
    "cpu": conversions.same,
    "dim": conversions.ndim,
    "double": conversions.caster(torch.float64),
    "expand": shapes.expand,
    "expand_as": shapes.expand_as,
    "float": conversions.caster(torch.float32),
    "int": conversions.caster(torch.int32),
    "item": conversions.item,
    "long": conversions.caster(torch.int64),
    "ndimension": conversions.ndim,
    "nelement": conversions.numel,
    "new_empty": conversions.news(0),
    "new_full": conversions.new_full,
    "new_ones": conversions.news(1),
    "new_tensor": conversions.new_tensor,
    "new_zeros": conversions.news(0),
    "numpy": conversions.to_numpy,
    "reshape_as": shapes.reshape_as,
    "size": conversions.size,
    "to": conversions.to,
    "tolist": lambda x: x.value.tolist(),
    "type": conversions.to_dtype,
    "type_as": conversions.type_as,
    "view": conversions.view,
    "view_as": shapes.reshape_as,
    "where": lambda x, condition, other: selection.where(condition, x, other),
}

_IN_TORCH: dict[str, Function] = {
    # What only torch has.
    "cat": shapes.cat,
    "concat": shapes.cat,
    "concatenate": shapes.cat,
    "empty_like": conversions.likes(0),
    "full_like": conversions.full_like,
    "ones_like": conversions.likes(1),
    "rsub": _reflected(elementwise.subtract),
    "stack": shapes.stack,
    "where": selection.where,
    "zeros_like": conversions.likes(0),
}

_IN_FUNCTIONAL: dict[str, Function] = {
    "binary_cross_entropy_with_logits": layers.binary_cross_entropy_with_logits,
    "cross_entropy": layers.cross_entropy,
    "dropout": layers.dropout,
    "elu": _no_inplace(activations.elu),
    "embedding": indexing.embedding,
    "huber_loss": layers.huber_loss,
    "l1_loss": layers.l1_loss,
    "layer_norm": layers.layer_norm,
    "leaky_relu": _no_inplace(activations.leaky_relu),
    "linear": layers.linear,
    "log_softmax": _log_softmax,
    "logsigmoid": activations.logsigmoid,
    "mse_loss": layers.mse_loss,
    "nll_loss": layers.nll_loss,
    "one_hot": indexing.one_hot,
    "pad": shapes.pad,
    "relu": _relu,
    "sigmoid": activations.sigmoid,
    "silu": _no_inplace(activations.silu),
    "smooth_l1_loss": layers.smooth_l1_loss,
    "softmax": _softmax,
    "softplus": activations.softplus,
    "tanh": activations.tanh,
}


def _truth(x: Any) -> Any:
    return x.to(torch.bool) if isinstance(x, Tensor) else conversions.caster(torch.bool)(x)


def _install() -> None:
    functions = Array.functions
    for name, function in {**_BOTH, **_METHODS, **_OPERATORS, **_ALONE}.items():
        setattr(Array, name, _method(function) if isinstance(function, numpy.ufunc) else function)
        if name not in _METHODS_OF_CLASS and hasattr(Tensor, name):
            functions[getattr(Tensor, name)] = function
    for name, function in _OPERATORS.items():
        reflected = f"__r{name[2:]}"
        setattr(Array, reflected, _reflected(function))
        if hasattr(Tensor, reflected):
            functions[getattr(Tensor, reflected)] = _reflected(function)
        setattr(Array, f"__i{name[2:]}", _refused)
    for name, function in {**_BOTH, **_IN_TORCH}.items():
        if hasattr(torch, name):
            functions[getattr(torch, name)] = function
    for name, function in _IN_FUNCTIONAL.items():
        functions[getattr(functional, name)] = function
    for name, read in _PROPERTIES.items():
        setattr(Array, name, property(read))


_CPU = torch.device("cpu")

_METHODS_OF_CLASS = frozenset(("__bool__", "__float__", "__int__", "__index__"))

_PROPERTIES: dict[str, Function] = {
    "T": shapes.t,
    "data": conversions.detach,
    "device": lambda x: _CPU,
    "dtype": conversions.dtype,
    "is_cpu": lambda x: True,
    "is_cuda": lambda x: False,
    "mT": lambda x: shapes.transpose(x, -2, -1),
    "ndim": conversions.ndim,
    "shape": conversions.shape,
}

_install()
