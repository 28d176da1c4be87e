"""TensorFlow: shards -> batches.

from pipeline.input import BatchOptions, damage_named, one_ahead, training_batches

batches = training_batches("workspace/datasets/images/4766e75c17183005", BatchOptions(image_size=224, batch_size=64))
for images, labels, weights in one_ahead(batches): ...
"""

from pipeline.input.batches import one_ahead, training_batches, validation_batches
from pipeline.input.cache import open_cache
from pipeline.input.damage import damage_named
from pipeline.input.options import BatchOptions
from pipeline.input.shares import steps_per_epoch
from pipeline.rendezvous.servers import Server

__all__ = [
    "BatchOptions",
    "Server",
    "damage_named",
    "one_ahead",
    "open_cache",
    "steps_per_epoch",
    "training_batches",
    "validation_batches",
]
