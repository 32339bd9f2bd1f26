"""Value decomposition for teams of agents: VDN, and QMIX as an option."""

from rlplug_vdn.algorithm import VDN
from rlplug_vdn.config import VDNConfig
from rlplug_vdn.module import Mixer, TeamModule

__all__ = ["VDN", "Mixer", "TeamModule", "VDNConfig"]
