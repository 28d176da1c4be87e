"""The pool of Airflow whose slots limit how many trainings run at once."""

GPU_POOL = "gpu"


def pool_command(slots: int) -> str:
    """Return the command that creates the pool. Without the pool, Airflow leaves its tasks in the state scheduled."""
    return f'airflow pools set {GPU_POOL} {slots} "trainings at once"'
