"""Loggers for Comet and TensorBoard."""
