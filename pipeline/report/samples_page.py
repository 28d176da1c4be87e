"""The page of the samples that were taken beside a command: utilization over time, and every metric in numbers."""

from pathlib import Path

import pandas

from pipeline.monitor.diagnosis import three_digits
from pipeline.monitor.thinned import Samples, read_samples
from pipeline.report.components import Table
from pipeline.report.page import page_of
from pipeline.report.utilization import utilization
from pipeline.storage import write_whole

PAGE = "samples.html"


def write(record: Path) -> Path:
    """Write the page of a record beside the folder of the record, and return its path. Raises OSError."""
    path = record.parent / PAGE
    with write_whole(path) as file:
        file.write(render(read_samples(record), path.parent.name).encode("utf-8", "backslashreplace"))
    return path


def render(samples: Samples, title: str) -> str:
    """Return the page as HTML that loads nothing from anywhere."""
    figure = utilization(samples, pandas.DataFrame({"time": []}))
    return page_of("samples.html.j2", [figure], title=title, figure=figure, metrics=metrics(samples))


def metrics(samples: Samples) -> Table:
    """Return mean, median, 95th percentile and maximum of each metric as a table."""
    values = samples.rows.drop(columns=["time", "step"])
    rows = [
        (str(name), *map(three_digits, (of.mean(), of.median(), of.quantile(0.95), of.max())))
        for name, of in values.items()
    ]
    spread = f"{len(values):,} evenly spread samples of " if len(values) < samples.count else ""
    note = f"Of {spread}{samples.count:,} samples."
    return Table(("metric", "mean", "median", "p95", "most"), rows, note)
