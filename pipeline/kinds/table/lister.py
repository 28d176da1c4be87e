"""The lister of a table: it stores rows in the order of the plan."""

from pipeline.config.settings import Settings
from pipeline.plan.options import arrange_of
from pipeline.tables.options import table_options
from pipeline.tables.row_ranges import TableLister


def table_lister(settings: Settings) -> TableLister:
    """Return the lister of settings that were checked."""
    return TableLister(table_options(settings, arrange_of(settings)))
