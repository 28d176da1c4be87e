"""What the plugin has to know of the DAGs: where a run keeps what others look at, and where it waits."""

TRAINING_PLACE = "training_place"
"""Key under which a task says it, of the folder of a training, from its start on."""
DATASET_PLACE = "dataset_place"
"""Of a published data set."""
GPU_POOL = "gpu"
"""Of the tasks that train."""
