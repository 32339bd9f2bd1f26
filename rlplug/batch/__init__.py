"""Training batches and their minibatches."""

from rlplug.batch.batch import SIDE_TABLES, Batch, Column, ExtendedBatch
from rlplug.batch.episodes import Episode
from rlplug.batch.minibatches import minibatches

__all__ = ["SIDE_TABLES", "Batch", "Column", "Episode", "ExtendedBatch", "minibatches"]
