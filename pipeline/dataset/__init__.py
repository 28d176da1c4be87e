"""What a dataset is: the manifest (`dataset.json`), labels, partitions, verification, foreign metadata, local copies."""
