"""What to change in a training, by the names of the settings."""
