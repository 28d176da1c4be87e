"""Where a run keeps what others look at: keys under which its tasks say so, for the plugin."""

TRAINING_PLACE = "training_place"
"""Of the folder of a training, from its start on."""
DATASET_PLACE = "dataset_place"
"""Of a published data set."""
