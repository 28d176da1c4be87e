"""Plan, write and publish: from a snapshot to the shards of a dataset, with the data gate."""
