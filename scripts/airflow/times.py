"""Times, as Airflow's REST API writes them."""

from datetime import datetime


def time_of(text: str | None) -> datetime | None:
    """Return the time in a text of the REST API; None if there is none yet."""
    return datetime.fromisoformat(text) if text else None
