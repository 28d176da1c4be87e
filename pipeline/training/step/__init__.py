"""One step of training on all devices, and the loop of steps."""
