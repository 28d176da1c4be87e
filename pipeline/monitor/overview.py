"""An overview of the record: windows of its rows, few enough to be read whole while a run of any length goes on.

    overview/samples-00000.csv   time,step,sys/cpu_pct,...,sys/cpu_pct/max,...

A row for each two seconds at first, and one for each minute and a half after ten hours (aggregation.py).
No window of batches spans two epochs.
"""

from contextlib import closing
from pathlib import Path

from pipeline.monitor.aggregation import OF_BATCHES, Windows
from pipeline.monitor.record import RecordSink
from pipeline.monitor.row import Row

OVERVIEW = "overview"
SHARE = 400
"""A window is as wide as a panel of so many pixels draws it."""
SEGMENT_BYTES = 500_000
"""Small: those that are closed are kept by who reads them, and the open one is read each time that somebody looks."""


class OverviewSink:
    """Writes means and maxima of windows as a record of their own in `folder`; `read` reads it.

    Raises OSError where the folder or the disk cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._record = RecordSink(folder, SEGMENT_BYTES)
        self._windows = Windows(SHARE, (*OF_BATCHES, "input/examples"))

    def write(self, row: Row) -> None:
        # No window may have steps of two epochs, because the seconds of an epoch are the sum of its windows.
        for window in self._windows.take(["batches"]) if row.kind == "epochs" else []:
            self._record.write(window)
        for window in self._windows.add(row):
            self._record.write(window)

    def close(self) -> None:
        """Write the windows that are open. Raises OSError if the disk fails; everything is closed then, too."""
        with closing(self._record):
            for window in self._windows.take():
                self._record.write(window)
