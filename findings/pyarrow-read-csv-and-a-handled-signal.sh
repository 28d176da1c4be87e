#!/usr/bin/env bash
# pyarrow.csv.read_csv fails if SIGTERM comes during the read, although the program handles that signal and goes on.
#
# Versions: PyArrow 26.0.1, pandas 3.1.1, Python 3.11 to 3.13, Linux.
#
# Situation: a scheduler sends SIGTERM before it takes a machine away. The program has a handler that notes the request,
# finishes its current work, saves and ends. At that moment, the main thread reads a table.
#
# Guess of an expert: the handler runs, and the read goes on, as system calls do in Python since PEP 475. A reader of
# files has nothing to do with signals. What ends the read can only be an exception of the handler.
#
# Behavior: for the duration of a call in the main thread, read_csv replaces the handlers of SIGINT and SIGTERM that the
# program installed. If a signal comes, it stops reading, calls the program's handler, and raises ArrowCancelled even
# though the handler returned. A program whose handler only notes the request fails with an error of the reader. So does
# pandas.read_csv(engine="pyarrow"). The readers open_csv, read_json and read_table of Parquet go on, and so does read_csv
# in another thread, or after pyarrow.enable_signal_handlers(False).
#
# Seen on 2026-11-30 (the handler was called once each time):
#   csv.read_csv: ArrowCancelled
#   pandas.read_csv(engine="pyarrow"): ArrowCancelled
#   csv.read_csv in another thread: 1500000 rows
#   csv.open_csv: 1500000 rows
#   parquet.read_table: 1500000 rows
#   json.read_json: 1500000 rows
#   csv.read_csv without its own handlers: 1500000 rows
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 pandas==3.1.1

"$folder/venv/bin/python" - "$folder" <<'EOF'
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas
import pyarrow
from pyarrow import csv, json, parquet

ROWS, FAILED, WHOLE = 1_500_000, "ArrowCancelled", "1500000 rows"
folder = Path(sys.argv[1])
table = pyarrow.table({f"column_{number}": range(ROWS) for number in range(4)})
csv.write_csv(table, folder / "table.csv")
parquet.write_table(table, folder / "table.parquet")
(folder / "table.json").write_text("".join(f'{{"a": {number}, "b": {number}}}\n' for number in range(ROWS)))
requests = []


def during_a_signal(read):
    """Return the rows that `read` gives while SIGTERM comes, or its error."""
    requests.clear()
    timer = threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGTERM])
    timer.start()
    try:
        return f"{len(read())} rows"
    except pyarrow.ArrowCancelled as error:
        return type(error).__name__
    finally:
        timer.join()


def read_csv():
    return csv.read_csv(folder / "table.csv")


def read_csv_in_a_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read_csv).result()


def read_csv_without_handlers():
    pyarrow.enable_signal_handlers(False)
    return read_csv()


CASES = {
    "csv.read_csv": (read_csv, FAILED),
    'pandas.read_csv(engine="pyarrow")': (lambda: pandas.read_csv(folder / "table.csv", engine="pyarrow"), FAILED),
    "csv.read_csv in another thread": (read_csv_in_a_thread, WHOLE),
    "csv.open_csv": (lambda: csv.open_csv(folder / "table.csv").read_all(), WHOLE),
    "parquet.read_table": (lambda: parquet.read_table(folder / "table.parquet"), WHOLE),
    "json.read_json": (lambda: json.read_json(folder / "table.json"), WHOLE),
    "csv.read_csv without its own handlers": (read_csv_without_handlers, WHOLE),
}
signal.signal(signal.SIGTERM, lambda number, _: requests.append(number))
print("PyArrow", pyarrow.__version__)
for case, (read, expected) in CASES.items():
    seen = during_a_signal(read)
    print(f"{case}: {seen}")
    if seen != expected or requests != [signal.SIGTERM]:
        raise SystemExit("The behavior has changed.")
print("The behavior is as described.")
EOF
