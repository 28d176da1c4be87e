"""The pages of the reference that are generated from the code are up to date."""

import pytest

from docs.generate import REFERENCE, generated_pages


@pytest.mark.parametrize("name", generated_pages())
def test_the_page_is_up_to_date(name: str):
    assert (REFERENCE / name).read_text("utf-8") == generated_pages()[name], "run: python -m docs.generate"
