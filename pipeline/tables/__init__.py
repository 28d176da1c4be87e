"""One row of a table: its schema, its types, and its encoding as a record. No TensorFlow here."""
