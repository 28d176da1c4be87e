"""Write a sample table, for a first run without a table of one's own."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from pipeline.storage import write_whole

CITIES = ("Aachen", "Bern", "Córdoba", "Delft", "Espoo", "Faro", "Gent", "Haifa", "Izmir", "Jena", "Kyoto", "Lyon")
PLANS = ("basic", "family", "student", "team")
_ROWS_AT_ONCE = 100_000
_FIRST_DAY = np.datetime64("2021-01-01")


def write_sample_table(path: Path, rows: int = 200_000, seed: int = 0) -> None:
    """Write a table of customers, of whom about a third left: the column `churn`, which the others explain in part.

    The columns have mixed types, and some lack values. The suffix of `path` is .csv or .parquet. The same seed gives
    the same rows. The file is complete or absent.
    """
    write = parquet.ParquetWriter if path.suffix == ".parquet" else csv.CSVWriter
    generator = np.random.default_rng(seed)
    with write_whole(path) as file:
        first = _customers(generator, 0, min(rows, _ROWS_AT_ONCE))
        with write(file, first.schema) as writer:
            writer.write_batch(first)
            for start in range(_ROWS_AT_ONCE, rows, _ROWS_AT_ONCE):
                writer.write_batch(_customers(generator, start, min(_ROWS_AT_ONCE, rows - start)))


def _customers(generator: np.random.Generator, start: int, rows: int) -> pa.RecordBatch:
    age = generator.integers(18, 90, rows)
    income = np.exp(generator.normal(10.3, 0.5, rows)).round(2)
    city, plan = generator.integers(0, len(CITIES), rows), generator.integers(0, len(PLANS), rows)
    visits = generator.poisson(6, rows)
    is_active = generator.random(rows) < 0.6
    days = generator.integers(0, 1500, rows)
    last_seen = (_FIRST_DAY + days).astype("datetime64[s]") + generator.integers(0, 86_400, rows)
    balance = generator.normal(0, 1000, rows).round(3)
    score = (
        -1.0
        + 0.03 * (50 - age)
        - 0.9 * (np.log(income) - 10.3)
        - 0.25 * (visits - 6)
        - 1.2 * is_active
        + np.array([1.5, -1.0, 0.6, -0.4])[plan]
        + 0.15 * ((city * 7) % 12 - 5)
    )
    has_left = generator.random(rows) < 1 / (1 + np.exp(-score))
    return pa.RecordBatch.from_pydict(
        {
            "customer": pa.array([f"c{number:08d}" for number in range(start, start + rows)]),
            "age": pa.array(age),
            "income": pa.array(income, mask=generator.random(rows) < 0.08),
            "city": pa.array([CITIES[each] for each in city], mask=generator.random(rows) < 0.02),
            "plan": pa.array([PLANS[each] for each in plan]),
            "visits": pa.array(visits, mask=generator.random(rows) < 0.03),
            "active": pa.array(is_active),
            "joined": pa.array(_FIRST_DAY + generator.integers(0, 1500, rows)),
            "last_seen": pa.array(last_seen, pa.timestamp("s")),
            "balance": pa.array(balance),
            "churn": pa.array(np.where(has_left, "yes", "no")),
        }
    )
