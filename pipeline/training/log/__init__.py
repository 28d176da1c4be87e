"""What Comet and TensorBoard get."""
