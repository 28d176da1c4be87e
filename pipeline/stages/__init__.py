"""The stages of a build, as one process runs them: extract, and plan, write, publish."""
