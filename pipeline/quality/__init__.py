"""Is the data fit to train on? What is checked of an image, of all images together, and what is done about it."""
