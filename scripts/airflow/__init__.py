"""Embedded Airflow on one machine: `python -m scripts.airflow run | backfill | up | down | status | check`.

request.py   what a person asks for, checked before anything starts
checks.py    check the administrator's settings before Airflow starts, here and in containers
settings.py  where Airflow lives and every setting it gets, as environment variables
keys.py      the generated log-in and secrets
database.py  how Airflow's processes share their database, and whether it is migrated already
processes.py starting and ending processes, with all they started
record.py    which Airflow runs here, and the lock that keeps it the only one
remote.py    the Airflow that a command talks to, which may run elsewhere
embedded.py  the four processes of Airflow as one thing that starts, dies or stops
ready.py     wait until Airflow can run a DAG
client.py    Airflow's REST API, as far as it is needed here
patience.py  repeat calls while Airflow does not answer
progress.py  states of tasks -> stages -> lines
follow.py    follow a job, such as one run, until its runs have ended
backfill.py  the jobs of a backfill and of the training after it, and the table of its dates
results.py   the results of a run, or why it failed
commands.py  the commands
signals.py   Ctrl-C and SIGTERM at moments of our choosing
"""
