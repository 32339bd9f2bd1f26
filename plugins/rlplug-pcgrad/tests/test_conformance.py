"""PCGrad does what rlplug asks of every add-on."""

from __future__ import annotations

from rlplug.testing import AddOnConformance


class TestPCGrad(AddOnConformance):
    name = "pcgrad"
