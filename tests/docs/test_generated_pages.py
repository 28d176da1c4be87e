"""The pages of the reference that are generated from the code are up to date."""

import pytest

from docs.generate import REFERENCE, generated_pages
from pipeline.config.automatic import training_settings
from pipeline.monitor.limits import Limit
from pipeline.monitor.load import Load
from pipeline.monitor.verdict import Verdict
from pipeline.tuning.advice import advice


@pytest.mark.parametrize("name", generated_pages())
def test_the_page_is_up_to_date(name: str):
    assert (REFERENCE / name).read_text("utf-8") == generated_pages()[name], "run: python -m docs.generate"


def test_the_verdict_in_the_documentation_ends_with_the_advice_of_the_code():
    page = (REFERENCE.parent / "explanation/verdict.md").read_text("utf-8")
    quoted = " ".join(line.removeprefix("> ") for line in page.splitlines() if line.startswith("> "))
    # Another quotation of the page names the stages of an input.
    assert advice(Verdict((Limit.DECODING,), "", Load()), training_settings({"image_size": 224}), {}) in quoted
