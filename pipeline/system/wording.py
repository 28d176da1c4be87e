"""The parts that sentences for a person have in common."""

from collections.abc import Iterable


def first_of(texts: Iterable[str], limit: int) -> str:
    """Return the first of several texts, such as `a, b and 3 more`. Without a text, the result is empty."""
    found = list(texts)
    return ", ".join(found[:limit]) + (f" and {len(found) - limit} more" if len(found) > limit else "")


def shortened(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, and three dots if there are more: a cell may have megabytes."""
    return text if len(text) <= limit else text[:limit] + "..."
