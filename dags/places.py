"""What the plugin has to know of the DAGs: where a run keeps what others look at, and where it waits."""

TRAINING_PLACE = "training_place"
"""Key under which a task says it, of the folder of a training, from its start on."""
DATASET_PLACE = "dataset_place"
"""Of a published dataset."""
FAILURE = "failure"
"""XCom key of the error message of a task that failed."""
GPU_POOL = "gpu"
"""Of the tasks that train."""


def pool_command(slots: int) -> str:
    """Return the command that creates the pool. Without the pool, Airflow leaves its tasks in the state scheduled."""
    return f'airflow pools set {GPU_POOL} {slots} "trainings at once"'
