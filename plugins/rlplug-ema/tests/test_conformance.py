"""EMA does what rlplug asks of every add-on."""

from __future__ import annotations

from rlplug.testing import AddOnConformance


class TestEMA(AddOnConformance):
    name = "ema"
