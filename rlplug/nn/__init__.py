"""The parts networks are made of, chosen from the spaces of an environment."""

from rlplug.nn.actor_critic import ActorCritic
from rlplug.nn.distributions import (
    Binary,
    Categorical,
    Distribution,
    Gaussian,
    MultiCategorical,
    SquashedGaussian,
    log_prob_of,
    make_distribution,
    masked,
    probabilities_of,
)
from rlplug.nn.encoders import (
    EmbeddingEncoder,
    FlatEncoder,
    ImageEncoder,
    PartsEncoder,
    make_encoder,
    no_encoder,
)
from rlplug.nn.heads import (
    ContinuousQHead,
    DistributionalHead,
    PolicyHead,
    QHead,
    QuantileHead,
    Streams,
    ValueHead,
    project,
)
from rlplug.nn.layers import GAINS, HiddenLayers, NoisyLinear, orthogonal, resample_noise
from rlplug.nn.memory import Fragments, Memory
from rlplug.nn.network import ActingNetwork, ActorCriticOptions, Body, Network, NetworkOptions
from rlplug.nn.targets import FixedTarget, PolyakTarget, TargetNetwork, TrivialTarget

__all__ = [
    "GAINS",
    "ActingNetwork",
    "ActorCritic",
    "ActorCriticOptions",
    "Binary",
    "Body",
    "Categorical",
    "ContinuousQHead",
    "Distribution",
    "DistributionalHead",
    "EmbeddingEncoder",
    "FixedTarget",
    "FlatEncoder",
    "Fragments",
    "Gaussian",
    "HiddenLayers",
    "ImageEncoder",
    "Memory",
    "MultiCategorical",
    "Network",
    "NetworkOptions",
    "NoisyLinear",
    "PartsEncoder",
    "PolicyHead",
    "PolyakTarget",
    "QHead",
    "QuantileHead",
    "SquashedGaussian",
    "Streams",
    "TargetNetwork",
    "TrivialTarget",
    "ValueHead",
    "log_prob_of",
    "make_distribution",
    "make_encoder",
    "masked",
    "no_encoder",
    "orthogonal",
    "probabilities_of",
    "project",
    "resample_noise",
]
