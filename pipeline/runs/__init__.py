"""One run: its files, launching a training, mirroring to a bucket, and the promotion of its model."""
