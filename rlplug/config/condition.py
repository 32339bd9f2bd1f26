"""A condition on a metric, as in `run.stop_when`: `eval/return_mean >= 475`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable

import attrs

AREAS = ("rollout", "train", "eval", "time")
"""What names of metrics begin with."""

_HOLDS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_MEANT = {"=>": ">=", "≥": ">=", "==": ">=", "=": ">=", "=<": "<=", "≤": "<="}
_FORM = re.compile(r"\s*([^\s<>=!≥≤]+)\s*([<>=!≥≤]+)\s*(\S+)\s*\Z")
_EXAMPLE = "as in 'eval/return_mean >= 475'"


@attrs.frozen
class Condition:
    """A metric, an operator and a number."""

    metric: str
    operator: str
    value: float

    def holds(self, found: float) -> bool:
        """Whether it holds for this value of the metric; never for NaN."""
        return _HOLDS[self.operator](found, self.value)


def parse_condition(text: str) -> Condition:
    """The condition that a text states; raises ValueError with what is wrong with it."""
    form = _FORM.match(text)
    if form is None:
        raise ValueError(f"expected a metric, an operator and a number, {_EXAMPLE}, got {text!r}")
    metric, sign, number = form.groups()
    if sign not in _HOLDS:
        meant = f", did you mean {_MEANT[sign]!r}?" if sign in _MEANT else ""
        raise ValueError(f"unknown operator {sign!r}{meant} (operators: {', '.join(_HOLDS)})")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"expected a number after {sign!r}, {_EXAMPLE}, got {number!r}")
    area, slash, _ = metric.partition("/")
    if not slash or area not in AREAS:
        areas = ", ".join(f"{one}/" for one in AREAS)
        raise ValueError(f"unknown metric {metric!r}: names of metrics begin with {areas}")
    return Condition(metric, sign, value)


def condition_problem(text: str) -> str | None:
    """What is wrong with a condition; an empty one is none."""
    if text:
        try:
            parse_condition(text)
        except ValueError as error:
            return str(error)
    return None
