"""`rlplug plugins new`: a package for a new plugin, which trains and passes its tests as it is."""

from rlplug.scaffold.names import Names
from rlplug.scaffold.package import Created, Flavour, create_package

__all__ = ["Created", "Flavour", "Names", "create_package"]
