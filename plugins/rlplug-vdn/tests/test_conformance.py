"""VDN does what rlplug asks of every algorithm."""

from __future__ import annotations

from rlplug.testing import AlgorithmConformance


class TestVDN(AlgorithmConformance):
    name = "vdn"
