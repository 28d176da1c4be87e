"""What is trained: the task of a dataset, its loss, and the model, which may be a function of the user."""
