"""Build a dataset of a DataFrame: `python -m tests.engines.dataframe TABLE PARTITIONS WORKSPACE`. Print the result."""

import json
import os
import sys

from pyspark.sql import SparkSession

from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.engines import SPARK_ON_LOOPBACK
from pipeline.stages.build import build_dataframe


def main(table: str, partitions: str, workspace: str) -> None:
    """Read the table with Spark, which infers the types by itself, and build its dataset."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    open_unless_set()
    builder = SparkSession.builder.master("local[2,4]")
    for name, value in {**SPARK_ON_LOOPBACK, "spark.sql.session.timeZone": "UTC"}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    frame = session.read.csv(table, header=True, inferSchema=True).repartition(int(partitions))
    settings = {"label_column": "churn", "key_column": "customer", "dataset_name": "t", "workspace": workspace}
    print(json.dumps(build_dataframe(frame, settings_from(settings))))


if __name__ == "__main__":
    main(*sys.argv[1:])
