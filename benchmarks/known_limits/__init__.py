"""Trainings with a known limit, for `benchmarks.verdicts`.

jobs.py          the jobs, and the changes that the advice proposes
many_cores.py    jobs as if on a machine of 64 cores, whose numbers are computed
datasets.py      their datasets
surroundings.py  container limits, a slow disk, a slow bucket, other programs
own_inputs.py    a training on a user's own input
own_models.py    users' own models and callbacks
"""
