"""Errors that name why a training stops: damaged batches, full memory, full disks, stuck servers."""
