"""Embedded Airflow on one machine: `python -m scripts.airflow run | backfill | up | down | status | check`.

Start with `commands.py`, which has the commands. The first line of each module says what the module holds.
"""
