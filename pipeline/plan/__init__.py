"""Which example goes where: split, shard and position, as plan files."""
