"""Side-by-side measurements against what a user would pick instead. Never timed tests."""
