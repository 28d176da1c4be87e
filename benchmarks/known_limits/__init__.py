"""Trainings with a known limit, for `benchmarks.verdicts`.

jobs.py          the jobs, and the changes that the advice proposes
datasets.py      their datasets
surroundings.py  container limits, a slow disk, a slow bucket, other programs
own_inputs.py    a training on a user's own input
own_models.py    users' own models and callbacks
"""
