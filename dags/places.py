"""Names that the DAGs and the plugin share: the XCom keys of places, and the pool of trainings."""

TRAINING_PLACE = "training_place"
"""XCom key of the folder of a training, from its start on."""
DATASET_PLACE = "dataset_place"
"""XCom key of the folder of a published dataset."""
COMPARISON_PLACE = "comparison_place"
"""XCom key of the folder of a comparison of inputs, from its start on."""
FAILURE = "failure"
"""XCom key of the error message of a task that failed."""
GPU_POOL = "gpu"
"""The pool of the tasks that train."""


def pool_command(slots: int) -> str:
    """Return the command that creates the pool. Without the pool, Airflow leaves its tasks in the state scheduled."""
    return f'airflow pools set {GPU_POOL} {slots} "trainings at once"'
