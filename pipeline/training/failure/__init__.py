"""Why a training stops: what is said about damaged batches, full memory, full disks and stuck servers."""
