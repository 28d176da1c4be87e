"""The pool of Airflow whose slots limit how many trainings run at once, and the task that trains."""

GPU_POOL = "gpu"
TRAIN = "train"
"""The id of the task that trains a model."""


def pool_command(slots: int) -> str:
    """Return the command that creates the pool. Without the pool, Airflow leaves its tasks in the state scheduled."""
    return f'airflow pools set {GPU_POOL} {slots} "trainings at once"'
