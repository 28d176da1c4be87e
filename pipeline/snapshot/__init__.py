"""Extract: the frozen list of what a source held, and reading the raw bytes of its images."""
