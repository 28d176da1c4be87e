"""The exported model: how it is written, and what it predicts."""
