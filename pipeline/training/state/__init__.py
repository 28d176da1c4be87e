"""What a training keeps for its next attempt: checkpoints and the best model."""
