"""A remote Airflow, which environment variables name by its address."""

from pathlib import Path

import pytest

from scripts.airflow.errors import Refused
from scripts.airflow.remote import Airflow, remote_from
from scripts.airflow.settings import Layout

LAYOUT = Layout(Path("/home"), Path("/workspace"), Path("/dags"))
URL, PASSWORD = "TENFOLD_AIRFLOW_URL", "TENFOLD_AIRFLOW_PASSWORD"


@pytest.mark.parametrize("environ", [{}, {URL: ""}, {PASSWORD: "p"}])
def test_without_an_address_there_is_no_remote_airflow(environ: dict[str, str]):
    assert remote_from(environ, LAYOUT) is None


def test_the_trailing_slash_of_the_address_is_removed():
    assert remote_from({URL: "http://a:1/", PASSWORD: "p"}, LAYOUT) == Airflow(
        LAYOUT, "http://a:1", "p", pages="http://a:1"
    )


def test_pages_have_the_base_url_that_a_browser_reaches():
    found = remote_from({URL: "http://a:1/", PASSWORD: "p", "AIRFLOW__API__BASE_URL": "http://127.0.0.1:8080"}, LAYOUT)
    assert found is not None
    assert (found.url, found.pages) == ("http://a:1", "http://127.0.0.1:8080")


@pytest.mark.parametrize("environ", [{URL: "http://a:1"}, {URL: "http://a:1", PASSWORD: ""}])
def test_an_address_without_password_is_refused(environ: dict[str, str]):
    with pytest.raises(Refused, match="set TENFOLD_AIRFLOW_PASSWORD"):
        remote_from(environ, LAYOUT)
