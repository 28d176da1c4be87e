"""TensorFlow: shards -> batches."""

from pipeline.input.images import training_batches, validation_batches

__all__ = ["training_batches", "validation_batches"]
