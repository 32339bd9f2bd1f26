"""Experience on its way to an update."""

from rlplug.batch.batch import SIDE_TABLES, Batch, Column
from rlplug.batch.extended import Extended
from rlplug.batch.minibatches import minibatches

__all__ = ["SIDE_TABLES", "Batch", "Column", "Extended", "minibatches"]
