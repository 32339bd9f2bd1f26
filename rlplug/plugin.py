"""What plugin authors touch: Algorithm, AddOn, Module, Loss, and what modules are given to act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import attrs
import torch
from torch import Tensor, nn

from rlplug.batch.episodes import DEFAULT_MODULE as DEFAULT_MODULE
from rlplug.errors import PluginError
from rlplug.feeds import Feed

if TYPE_CHECKING:
    import gymnasium
    import numpy

    from rlplug.batch import Batch

ALL_MODULES = "__all_modules__"
"""Stands for all modules together: shared parameters, sums of results."""

Observations: TypeAlias = "numpy.ndarray | Tensor | Mapping[str, Any] | tuple[Any, ...]"


@attrs.frozen(kw_only=True)
class NoOptions:
    """The options of a plugin that has none."""


@dataclass(slots=True)
class ActInput:
    """What a module is given to choose actions, for n environments at once."""

    observations: Any
    """As the environments gave them, with a leading dimension n; NumPy or tensors.

    Their memory is written again later: what a module keeps, it copies."""
    action_mask: Any = None
    """True where an action may be chosen, shape (n, actions); None if all may."""
    state: Any = None
    """What the module returned as `Acted.state` one step before; None without memory."""
    timestep: int = 0
    """Environment steps so far, summed over environments."""
    random: Any = None
    """The sampler's `numpy.random.Generator`: the only source of randomness in acting.

    A `torch.Generator` where `in_torch` is set."""
    steps: int = 0
    """Environment steps of the whole run, for exploration that ends with it; 0: not known."""
    wants_log_prob: bool = False
    """Whether `Acted.extras` must hold `log_prob`: weights may have changed when it is learned."""
    in_torch: bool = False
    """Whether observations are tensors on a device, and actions must be.

    So it is for modules that declare `acts_on_tensors`, in environments of tensors. To read a value
    (`item`, `bool`, `numpy`) would wait for the device in every step."""
    drawn: list[float] = field(default_factory=list, init=False, repr=False)
    """What `chance` drew from `random` and has not given away."""

    def chance(self) -> float:
        """One number from [0, 1) out of `random`, which is asked for many at a time.

        One alone takes it as long as a small layer; for n environments, draw n.
        """
        if not self.drawn:
            self.drawn = self.random.random(_AT_A_TIME)[::-1].tolist()
        return self.drawn.pop()


_AT_A_TIME = 64


@dataclass(slots=True)
class Acted:
    """What a module chose, and what it wants stored beside the step."""

    actions: Any
    state: Any = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Columns with n rows (`log_prob`, `ucb`, …): stored only if returned."""


class Module(nn.Module):
    """One policy: it acts, and it is trained."""

    acts_on_tensors: bool = False
    """Whether it acts in torch where `ActInput.in_torch` is set; otherwise, it gets arrays."""

    def forward_exploration(self, act: ActInput) -> Acted:
        """Choose actions to learn from."""
        raise TypeError(f"{type(self).__name__} must define forward_exploration")

    def forward_inference(self, act: ActInput) -> Acted:
        """Choose the best actions; the same observations give the same actions."""
        raise TypeError(f"{type(self).__name__} must define forward_inference")

    def forward_export(self, act: ActInput) -> Acted:
        """`forward_inference` in torch operations alone, on tensors, for `rlplug export`.

        To be defined where `forward_inference` itself uses NumPy, or branches on values.
        """
        return self.forward_inference(act)

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """What the loss needs of a batch; empty unless the algorithm wants it computed here."""
        return {}

    def action_probabilities(self, act: ActInput) -> Any:
        """Probability (n, actions) of each discrete action under `forward_exploration`.

        For off-policy estimates. None: not known, they are estimated from draws.
        """
        return None

    def action_log_prob(self, act: ActInput, actions: Any) -> Any:
        """Log-densities (n,) of continuous actions under `forward_exploration`; None: not known."""
        return None

    def initial_state(self, n: int) -> Mapping[str, Tensor] | None:
        """The state of n fresh episodes, for modules with memory."""
        return None


@dataclass(frozen=True, slots=True)
class Loss:
    """What `compute_loss_for_module` may return where a plain tensor is too little."""

    value: Tensor | Mapping[str, Tensor]
    """A tensor moves every optimizer that acts; a mapping gives each optimizer its own."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Tensors or numbers; tensors stay on the device until they are reported."""
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    """The named parts of the sum, for reports and for gradients per term."""
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    """Per-row tensors; `priority` goes back to the feed with the batch's `indices`."""
    stop: Tensor | None = None
    """A 0-d bool: True ends this module's epochs before the step."""


class LearnerView(Protocol):
    """What hooks may ask of the learner."""

    @property
    def modules(self) -> Mapping[str, Module]:
        """All modules by id."""

    @property
    def extra(self) -> Mapping[str, Mapping[str, nn.Module]]:
        """Extras by module id and plugin name."""

    @property
    def device(self) -> torch.device:
        """Where modules and batches are."""

    @property
    def timestep(self) -> int:
        """Environment steps at the current update."""

    @property
    def world_size(self) -> int:
        """How many learners share each update; 1: nothing needs to be combined."""

    def register_optimizer(
        self,
        module_id: str,
        optimizer_name: str,
        optimizer: torch.optim.Optimizer,
        params: Sequence[nn.Parameter],
        lr_or_lr_schedule: float | Sequence[Sequence[float]] | None = None,
    ) -> None:
        """Register an optimizer by hand, instead of returning it."""

    def generator(self, module_id: str = DEFAULT_MODULE) -> torch.Generator:
        """The random numbers of training hooks: part of the state, one generator per module."""

    def get_optimizer(
        self, module_id: str = DEFAULT_MODULE, optimizer_name: str = "default"
    ) -> torch.optim.Optimizer:
        """One optimizer by its module and its name."""

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The tensors combined over all learners; `op` is `sum`, `mean` or `max`."""


class _Plugin:
    """What algorithms and add-ons share: typed options, given at creation."""

    Config: ClassVar[type[Any]] = NoOptions
    """A frozen, keyword-only attrs class whose fields are made with `rlplug.option`."""

    variants: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Sets of options that `rlplug plugins check` tries beside the defaults: what is off by default
    or happens only after many updates. Without any, it tries each bool and Literal by itself."""

    untested_options: ClassVar[Mapping[str, str]] = {}
    """Options whose effect `rlplug plugins check` cannot see, each with the reason."""

    reference: ClassVar[str] = ""
    """`module:function` that computes plainly, from all rows at once, what a closed form knows; for
    `rlplug plugins check`. `function(config, rows, observations, count)` gives scores of each of
    `count` actions, shape (n, count), by the names of the extras that acting returns; inference is
    greedy in the first one. It returns None where it has no answer."""

    checks: ClassVar[Sequence[str]] = ()
    """What else `rlplug plugins check` checks, as `module:name`: a function that gets the
    `Subject`, or a list of functions; see docs/conformance.md."""

    config: Any = NoOptions()
    """The options it was made with."""

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config


class Algorithm(_Plugin):
    """Builds modules and says how they learn; exactly one takes part in a run.

    The hooks it may implement are in docs/hooks.md; `build` is the only one it must.
    """

    default_env: ClassVar[str] = ""
    """The environment of `rlplug run --algo NAME` without `--env`."""

    default_steps: ClassVar[int] = 100_000
    """Environment steps of a run without `--steps`."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Other defaults for core options, by path: `{"sampling.num_envs": 8}`."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of values by path, tuned for one environment each: `--preset NAME`."""

    def feed(self) -> Feed:
        """How experience is collected and handed to the learner, read from the options."""
        raise PluginError(
            f"algorithm class {type(self).__name__!r} has no 'feed'.",
            f"define {type(self).__name__}.feed: it says how experience is collected",
        )

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """Why these spaces cannot be handled, in one line; None if they can."""
        return None


class AddOn(_Plugin):
    """Takes part in any algorithm's run: adds a loss term, changes gradients, or watches."""

    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Options by which it changes nothing, bit for bit; None: it claims none."""
