"""The stages of a build: extract, shard, upload. The command line and the DAGs call them."""
