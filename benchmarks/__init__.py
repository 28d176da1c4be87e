"""Side-by-side measurements against what a user would pick instead. Never timed tests.

Each module here is one benchmark: `python -m benchmarks.NAME`. `harness/` holds the machinery that they share,
`contenders/` the things that are compared, and `known_limits/` the trainings of `benchmarks.verdicts`.
"""
