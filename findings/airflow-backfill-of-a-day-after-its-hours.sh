#!/usr/bin/env bash
# A backfill of a day creates no run if the last hour of that day was backfilled before.
#
# Versions: apache-airflow-core 3.3.2, standard provider 1.21.0, SQLite, Python 3.11 to 3.13.
#
# Situation: a DAG has an hourly schedule (CronDataIntervalTimetable), and its hours are backfilled. Later, its schedule
# becomes daily, and the same day is backfilled.
#
# Guess of an expert: the run of the day and the run of the hour have different logical dates (00:00 and 23:00) and
# different data intervals. Airflow tells runs apart by the logical date, so the second backfill creates the run of the
# day. The dry run says so too. If a run exists, `--reprocess-behavior completed` clears it.
#
# Behavior: Airflow makes the id of a backfill run from `run_after` alone. Both runs have the same `run_after`, the
# midnight at which both intervals end, so they have the same id. The insertion violates the unique id. Airflow takes
# this for a run of the same logical date in another process: it creates no run and notes the reason "in flight",
# although all runs have ended. The command succeeds, and no run of the day ever exists.
#
# Seen on 2026-11-29:
#   after the backfill of the hour: [('backfill__2026-01-02T00:00:00+00:00', 'success', '2026-01-01 23:00')]
#   dry run promises 2026-01-01 00:00:00
#   the command for the day succeeded
#   all runs: [('backfill__2026-01-02T00:00:00+00:00', 'success', '2026-01-01 23:00')]
#   all backfills: [(1, '2026-01-01 23:00', 'created', None), (2, '2026-01-01 00:00', 'no run', 'in flight')]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    apache-airflow-core==3.3.2 apache-airflow-task-sdk==1.3.2 apache-airflow-providers-standard==1.21.0

export PATH="$folder/venv/bin:$PATH" AIRFLOW_HOME="$folder/airflow"
export AIRFLOW__CORE__LOAD_EXAMPLES=False AIRFLOW__CORE__DAGS_FOLDER="$folder/dags"
mkdir -p "$folder/dags"

write_dag() { # the cron expression of the schedule
    cat > "$folder/dags/sales.py" <<EOF
from datetime import datetime, timezone

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

with DAG(
    "sales",
    schedule=CronDataIntervalTimetable("$1", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    end_date=datetime(2026, 1, 2, tzinfo=timezone.utc),
    catchup=False,
    is_paused_upon_creation=False,
):
    EmptyOperator(task_id="load")
EOF
    airflow dags reserialize >> "$folder/log" 2>&1
}

backfill() { # the moment at which the interval begins, then more arguments
    airflow backfill create --dag-id sales --from-date "$1" --to-date "$1" "${@:2}"
}

rows() { # what to print before the rows, then a query
    python3 - "$folder/airflow/airflow.db" "$@" <<'EOF'
import sqlite3, sys

print(sys.argv[2], sqlite3.connect(sys.argv[1]).execute(sys.argv[3]).fetchall())
EOF
}

runs="select run_id, state, substr(logical_date, 1, 16) from dag_run order by id"
backfills="select backfill_id, substr(logical_date, 1, 16), case when dag_run_id is null then 'no run' else 'created' end,
    exception_reason from backfill_dag_run order by id"

airflow db migrate >> "$folder/log" 2>&1
write_dag "0 * * * *"
backfill 2026-01-01T23:00:00+00:00 >> "$folder/log" 2>&1
# The scheduler itself ends an EmptyOperator. After 30 seconds (30 idle loops) it ends the backfill.
airflow scheduler --num-runs 45 --skip-serve-logs >> "$folder/log" 2>&1
rows "after the backfill of the hour:" "$runs" | tee "$folder/seen"

write_dag "0 0 * * *"
backfill 2026-01-01T00:00:00+00:00 --dry-run 2>> "$folder/log" |
    sed -nE 's/^\| (2026-[0-9 :-]{14}).*/dry run promises \1/p' | tee -a "$folder/seen"
backfill 2026-01-01T00:00:00+00:00 --reprocess-behavior completed >> "$folder/log" 2>&1
echo "the command for the day succeeded" | tee -a "$folder/seen"
rows "all runs:" "$runs" | tee -a "$folder/seen"
rows "all backfills:" "$backfills" | tee -a "$folder/seen"

diff - "$folder/seen" <<'EOF' || { echo "The behavior has changed." >&2; exit 1; }
after the backfill of the hour: [('backfill__2026-01-02T00:00:00+00:00', 'success', '2026-01-01 23:00')]
dry run promises 2026-01-01 00:00:00
the command for the day succeeded
all runs: [('backfill__2026-01-02T00:00:00+00:00', 'success', '2026-01-01 23:00')]
all backfills: [(1, '2026-01-01 23:00', 'created', None), (2, '2026-01-01 00:00', 'no run', 'in flight')]
EOF
echo "The behavior is as described."
