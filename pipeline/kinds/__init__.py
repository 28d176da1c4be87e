"""What differs between kinds of examples."""
