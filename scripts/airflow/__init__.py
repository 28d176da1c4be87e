"""Embedded Airflow on one machine: `python -m scripts.airflow run | backfill | up | down | status | check`.

request.py   what to train on: SOURCE and PARAMS, checked before anything starts
dates.py     which dates to backfill: FROM, TO and REPROCESS, checked likewise
schedules.py check the administrator's settings before Airflow starts, here and in containers
notifiers.py check that the administrator's notifiers can be created
settings.py  where Airflow lives and every setting it gets, as environment variables
sqlite.py    how Airflow's processes share their database
migration.py  whether the database is migrated already
keys.py      the generated log-in and secrets
processes.py starting and ending processes, with all they started
record.py    which Airflow runs here, and the lock that keeps it the only one
embedded.py  the four processes of Airflow as one thing that starts, dies or stops
remote.py    an Airflow that is kept by others, named by its address
client.py    Airflow's REST API, as far as it is needed here
times.py     times, as the REST API writes them
progress.py  states of tasks -> stages -> lines
failure.py   the log of a failed task -> the words that matter
follow.py    trigger a run, show it, tell what came of it
patience.py  repeat calls while Airflow does not answer
watch.py     show a run until it ends; name it if Airflow does not answer any more
backfill.py  start a backfill, show its dates, cancel it
table.py     what came of a backfill, a line a date
retraining.py  the one training that follows a backfill
signals.py   Ctrl-C and SIGTERM at moments of our choosing
"""
