"""The rows of a table as examples."""
