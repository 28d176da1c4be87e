"""What a dataset is: manifest (`dataset.json`), labels, partitions, verification, metadata, indexes, local copies."""
