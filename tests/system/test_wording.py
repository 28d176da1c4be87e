import pytest

from pipeline.system.wording import format_size, kind_of_reason, range_text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (999_600, "1 MB"), (2.5e9, "2.5 GB"), (3e15, "3 PB")],
)
def test_sizes_are_formatted_with_units(count: float, text: str):
    assert format_size(count) == text


def test_a_range_of_equal_values_is_one_value():
    assert (range_text("1", "3"), range_text("60.0%", "60.0%")) == ("1 to 3", "60.0%")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("cannot be decoded: truncated", "cannot be decoded"),
        ("its 90 megapixels are above the limit of 50", "its … megapixels are above the limit of …"),
        (
            "the row has 5 fields, but the header has 4 ('Smith, 3 High St…')",
            "the row has … fields, but the header has …",
        ),
        ("column 'age' holds 'a: b', which is not a number", "column 'age' holds …, which is not a number"),
    ],
)
def test_a_kind_of_reason_has_nothing_of_one_example(reason: str, kind: str):
    assert kind_of_reason(reason) == kind
