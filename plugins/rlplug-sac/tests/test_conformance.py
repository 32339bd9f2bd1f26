"""SAC and TD3 do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance


class TestSAC(AlgorithmConformance):
    name = "sac"
    options = {"tau": 0.05}
    variants = ({"ent_coef": 0.1},)
    # TD3 solves it for each change, in less time.
    marks = {"solves_stay_under_a_time_limit": pytest.mark.long}


class TestTD3(AlgorithmConformance):
    name = "td3"
    options = {"tau": 0.05}
