"""The Spark cluster to use: that of the active session, of `spark-submit`, or of TENFOLD_SPARK_MASTER.

Without any of them, it is this machine.
"""

import os
import sys

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from pipeline.engines import SPARK_ON_LOOPBACK

MASTER = "TENFOLD_SPARK_MASTER"
THIS_MACHINE = "local[*,4]"
"""All cores, and at most four attempts of each Spark task, as on a cluster."""


def spark_context() -> SparkContext:
    """Return the connection of this process to the cluster."""
    if SparkSession.getActiveSession() or "PYSPARK_GATEWAY_PORT" in os.environ:  # The latter is set by `spark-submit`.
        return SparkContext.getOrCreate()
    # Spark's own default is `python3` of the PATH, which may lack the packages of this environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = os.environ.get(MASTER, THIS_MACHINE)
    configuration = SparkConf().setMaster(master).setAppName("tenfold")
    configuration.set("spark.ui.showConsoleProgress", "false")  # Tenfold shows its own.
    if not master.startswith("local"):
        return SparkContext.getOrCreate(configuration)
    context = SparkContext.getOrCreate(configuration.setAll(SPARK_ON_LOOPBACK.items()))
    # Spark writes a page of stack traces for a task that failed, and the error names the cause.
    context.setLogLevel("FATAL")
    return context
