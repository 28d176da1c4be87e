"""The comparison of inputs: several ways to make batches, measured in turn."""
