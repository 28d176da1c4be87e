"""The commands that `make` runs: the embedded Airflow, Compose, the demo of buckets."""
