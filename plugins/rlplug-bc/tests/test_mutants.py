"""Single bugs planted in behaviour cloning, each caught by the check meant for it."""

from __future__ import annotations

from rlplug_bc import BC
from rlplug_bc.losses import bc_loss

from rlplug import Batch
from rlplug.testing.conformance import mutant_test


class WeightsForgotten(BC):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        kept = Batch({name: batch[name] for name in batch if name != "weights"})
        return super().compute_loss_for_module(module, config, kept, fwd_out)


class EntropyIsPunished(BC):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        parameters = fwd_out["parameters"]
        return bc_loss(module.distribution, parameters, batch, -config.ent_coef, None)


MUTANTS = [
    (WeightsForgotten, "importance_weights_scale_the_loss"),
    (
        EntropyIsPunished,
        "entropy_keeps_imitation_random",
    ),
]


test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(MUTANTS)
