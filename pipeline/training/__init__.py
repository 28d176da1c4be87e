"""TensorFlow: the training process. `python -m pipeline.training JOB` is started by `pipeline.runs.launch`."""
