"""Embedded Airflow on one machine: `python -m scripts.airflow run | up | down | status`.

request.py   what to train on: SOURCE and PARAMS, checked before anything starts
settings.py  where Airflow lives and every setting it gets, as environment variables
keys.py      the generated log-in and secrets
processes.py starting and ending processes, with all they started
record.py    which Airflow runs here, and the lock that keeps it the only one
embedded.py  the four processes of Airflow as one thing that starts, dies or stops
client.py    Airflow's REST API, as far as it is needed here
progress.py  states of tasks -> stages -> lines
failure.py   the log of a failed task -> the words that matter
follow.py    trigger a run, show it, tell what came of it
signals.py   Ctrl-C and SIGTERM at moments of our choosing
"""
