"""What a dataset is: the manifest (`dataset.json`), labels, partitions, verification, metadata, local copies."""
