"""TensorFlow: shards -> batches."""

from pipeline.input.images import CYCLE, order_of_need, training_batches, validation_batches

__all__ = ["CYCLE", "order_of_need", "training_batches", "validation_batches"]
