import pytest

from pipeline.system.wording import format_size


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (999_600, "1 MB"), (2.5e9, "2.5 GB"), (3e15, "3 PB")],
)
def test_sizes_are_formatted_with_units(count: float, text: str):
    assert format_size(count) == text
