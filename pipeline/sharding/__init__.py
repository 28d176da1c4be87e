"""Write and publish: from a plan to the shards of a dataset, and to the dataset of a window of dates."""
