"""Failures are printed when they happen. Without this, a test run that is stopped shows them as letters only."""

import pytest

MAX_LINES = 40


class FailuresAtOnce:
    """A plugin of pytest that prints the end of each failure."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the report of a failed test."""
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"{report.nodeid} failed in its {report.when} part:", red=True)
            for line in report.longreprtext.splitlines()[-MAX_LINES:]:
                self._reporter.write_line(line)
            self._reporter.flush()
