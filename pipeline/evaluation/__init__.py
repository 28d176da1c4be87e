"""How good a model is: metrics and their intervals, as pure functions without TensorFlow."""
