"""VDN does what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance
from rlplug.testing.checks import CHECKS

# DQN shows the rest for each change: of a single agent, VDN's modules are DQN's.
QUICKLY = {
    *("is_found_once", "builds_for_the_spaces_it_supports", "every_parameter_learns"),
    *("loss_is_a_mean", "targets_follow", "targets_are_used"),
    *("terminated_steps_do_not_bootstrap", "truncated_steps_bootstrap", "fragments_do_not_leak"),
    *("updates_depend_on_every_column", "errors_pull_values", "priorities_grow_with_errors"),
    *("errors_pull_values", "state_is_complete", "every_option_has_an_effect"),
    *("teams_are_learned", "another_process_gives_the_same_numbers", "modules_of_several_spaces"),
}
FOR_DQN = {check.name: pytest.mark.long for check in CHECKS if check.name not in QUICKLY}


class TestVDN(AlgorithmConformance):
    name = "vdn"
    marks = FOR_DQN
