"""An overview of the record: intervals of its rows, few enough to be read whole while a run of any length goes on.

    overview/samples-00000.csv   time,step,sys/cpu_pct,...,sys/cpu_pct/max,...

It has a row for every two seconds at first, and one for every minute and a half after ten hours (aggregation.py).
No interval of batches spans two epochs.
"""

from contextlib import closing
from pathlib import Path

from pipeline.monitor.aggregation import OF_BATCHES, Intervals
from pipeline.monitor.record import RecordSink, recorded_s
from pipeline.monitor.row import Row

OVERVIEW = "overview"
SHARE = 400
"""An interval is this part of the run so far, retries included, which is a pixel of a panel of this width."""
SEGMENT_BYTES = 500_000
"""Small, because readers keep the closed segments and read the open one each time that somebody looks."""


class OverviewSink:
    """Writes means and maxima of intervals as a record of their own in `folder`; `read` reads it.

    Raises OSError if the folder or the disk cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._record = RecordSink(folder, SEGMENT_BYTES)
        of_batches = (*OF_BATCHES, "input/examples")
        self._intervals = Intervals(SHARE, of_batches, counts_samples=True, before_s=recorded_s(folder))
        self._has_begun = False

    def write(self, row: Row) -> None:
        """Add a row, and write the intervals that are complete now. Raises OSError if the disk fails."""
        # No interval may have steps of two epochs, because the seconds of an epoch are the sum of its intervals.
        of_epoch = self._intervals.take(["batches"]) if row.kind == "epochs" else []
        for interval in (*of_epoch, *self._intervals.add(row), *self._first_sample(row)):
            self._record.write(interval)

    def _first_sample(self, row: Row) -> list[Row]:
        """Return the first sample as an interval of its own: readers take its time for the start of the training."""
        if self._has_begun or row.kind != "samples":
            return []
        self._has_begun = True
        return self._intervals.take(["samples"])

    def close(self) -> None:
        """Write the intervals that are open. Raises OSError if the disk fails; everything is closed then, too."""
        with closing(self._record):
            for interval in self._intervals.take():
                self._record.write(interval)
