"""The machinery that the benchmarks share.

rounds.py      contenders, measured in alternating rounds
worker.py      the process that runs one contender
machine.py     the machine, folders, logs, progress and sections of a benchmark
images.py      sources of drawn images
tables.py      tables of random values
simulated.py   the rows of a record of a training, with noise
growing.py     records of trainings that still grow
dag_import.py  one import of the DAGs, timed
"""
