"""Build a dataset of a DataFrame: `python -m tests.engines.dataframe TABLE PARTITIONS SETTINGS`. Print the result."""

import json
import logging
import os
import sys

from pyspark.sql import SparkSession

from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.engines import SPARK_ON_LOOPBACK
from pipeline.stages.build import build_dataframe


def main(table: str, partitions: str, settings: str) -> None:
    """Read the table with Spark, which infers the types by itself, and build its dataset."""
    logging.basicConfig(level=logging.WARNING)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    open_unless_set()
    builder = SparkSession.builder.master("local[2,4]")
    for name, value in {**SPARK_ON_LOOPBACK, "spark.sql.session.timeZone": "UTC"}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    is_csv = table.endswith(".csv")
    frame = session.read.csv(table, header=True, inferSchema=True) if is_csv else session.read.parquet(table)
    settings_of_test = settings_from({"dataset_name": "t", **json.loads(settings)})
    print(json.dumps(build_dataframe(frame.repartition(int(partitions)), settings_of_test)))


if __name__ == "__main__":
    main(*sys.argv[1:])
