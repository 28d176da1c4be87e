"""The pool of Airflow whose slots limit how many trainings run at once."""

GPU_POOL = "gpu"
"""The pool of the tasks that train."""


def pool_command(slots: int) -> str:
    """Return the command that creates the pool. Without the pool, Airflow leaves its tasks in the state scheduled."""
    return f'airflow pools set {GPU_POOL} {slots} "trainings at once"'
