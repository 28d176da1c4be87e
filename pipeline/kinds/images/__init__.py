"""Images as examples."""
