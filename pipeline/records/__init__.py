"""The TFRecord format and the encoding of examples, without TensorFlow."""
