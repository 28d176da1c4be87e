"""Metrics of a model and their intervals, as pure functions without TensorFlow."""
