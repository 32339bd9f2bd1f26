"""Make one member of a learner: module, extras, optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import Adam

from rlplug.errors import PluginError
from rlplug.learner.member import Member
from rlplug.learner.optimizers import Registered
from rlplug.learner.stage import Stage
from rlplug.optim.forms import OptimizerPlan, read_forms
from rlplug.seeding import derive

if TYPE_CHECKING:
    from rlplug.learner.learner import Learner

__all__ = ["assemble"]


def assemble(learner: Learner, module_id: str) -> Member:
    """Build a module and its extras and configure its optimizers."""
    calls = learner.calls
    spaces = learner.spaces[module_id]
    seed = derive(learner.seed, "module", module_id)
    module = calls.build(module_id, *spaces, seed)
    extras = calls.build_extra(module_id, module, *spaces, seed)
    member = Member(module_id, module, extras, calls.algorithm.name)
    learner.modules[module_id] = module
    learner.extra[module_id] = member.extras
    _optimizers(learner, member)
    member.optimizers = learner.optimizers.of(module_id)
    learner._stages[module_id] = Stage(member, calls, learner, learner.learning)
    return member


def _optimizers(learner: Learner, member: Member) -> None:
    calls = learner.calls
    answers = dict(calls.configure_optimizers_for_module(member.module_id, member.module, learner))
    algorithm = member.algorithm
    if algorithm not in answers and (params := member.own(algorithm)):
        config = calls.config_of(algorithm, member.module_id)
        rate = getattr(config, "learning_rate", None)
        if rate is None:
            raise PluginError(
                f"algorithm {algorithm!r} has parameters but neither an option 'learning_rate' "
                "nor the hook 'configure_optimizers_for_module'.",
                "add one of them; the hook may return None",
            )
        answers[algorithm] = Adam(params, lr=rate, fused=True)
    for plugin, answer in answers.items():
        who = f"configure_optimizers_for_module of plugin {plugin!r}"
        for plan in read_forms(answer, who):
            one = Registered(
                member.module_id, _name(plan, plugin, algorithm), plugin, plan.optimizer
            )
            one.burst = plan.burst
            member.check_owned(one)
            learner.optimizers.add(one, plan.scheduler)


def _name(plan: OptimizerPlan, plugin: str, algorithm: str) -> str:
    if plugin == algorithm:
        return plan.name
    return plugin if plan.name == "default" else f"{plugin}.{plan.name}"
