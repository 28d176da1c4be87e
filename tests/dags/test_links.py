"""The links of the tasks lead to the run, with any run id."""

from types import SimpleNamespace

import pytest

from dags.links import CardLink, CometLink, InputsLink, ReportLink, TrainingLink

OF_RUN = SimpleNamespace(dag_id="image_training", run_id="manual__2026-01-01T00:00:00+00:00&x=1/..", task_id="train")


@pytest.mark.parametrize(
    ("link", "address"),
    [
        (ReportLink(), "tenfold/report?dag_id=image_training&run_id="),
        (InputsLink(), "tenfold/inputs?dag_id=image_training&run_id="),
        (CardLink(), "tenfold/card?dag_id=image_training&run_id="),
    ],
)
def test_links_lead_to_pages_of_the_run(link: ReportLink, address: str):
    assert link.get_link(None, ti_key=OF_RUN) == f"{address}manual__2026-01-01T00%3A00%3A00%2B00%3A00%26x%3D1%2F.."


def test_a_link_leads_to_the_tab_of_the_run():
    assert TrainingLink().get_link(None, ti_key=OF_RUN) == (
        "dags/image_training/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00%26x%3D1%2F../plugin/training"
    )


@pytest.mark.parametrize(
    ("returned", "address"),
    [("https://www.comet.com/me/tenfold/1", "https://www.comet.com/me/tenfold/1"), ("/runs/1/comet", ""), (None, "")],
)
def test_a_link_leads_to_the_experiment_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, returned: str | None, address: str
):
    # A real XCom needs the process that started the task.
    monkeypatch.setattr("airflow.sdk.execution_time.xcom.XCom.get_value", lambda *, ti_key, key: returned)
    assert CometLink().get_link(None, ti_key=OF_RUN) == address
