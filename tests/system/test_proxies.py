"""An invalid proxy address is refused with an error that does not show its password."""

import traceback
from pathlib import Path

import pytest

from pipeline.config.settings import Settings
from pipeline.errors import SettingsError
from pipeline.runs.launch import prepare_run
from pipeline.storage.gcs import Gcs, _credentials
from pipeline.system.proxies import require_proxies
from standins.fake_gcs import FakeGcs

SECRET = "pLaNtEd"
GOOD = [f"http://me:{SECRET}@127.0.0.1:3128", "http://proxy", "proxy:3128", f"me:{SECRET}%2F@proxy:1"]
BAD = [f"http://me:{SECRET}@127.0.0.1:99999", f"http://me:{SECRET}/@127.0.0.1:1", f"http://me:{SECRET}@a:b"]


@pytest.mark.parametrize("address", GOOD)
def test_a_valid_proxy_address_is_accepted(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", address)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1:99999, a:b")
    require_proxies()


@pytest.mark.parametrize("address", BAD)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_an_invalid_proxy_address_is_refused_without_showing_its_password(
    name: str, address: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(name, address)
    with pytest.raises(SettingsError, match=rf"^the environment variable {name.upper()} is not the address") as caught:
        require_proxies()
    assert SECRET not in "".join(traceback.format_exception(caught.value))  # what Airflow logs, causes included


def test_buckets_and_trainings_check_the_proxies(
    settings: Settings, gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HTTPS_PROXY", BAD[0])
    with pytest.raises(SettingsError, match="HTTPS_PROXY"):
        Gcs(_credentials())
    with pytest.raises(SettingsError, match="HTTPS_PROXY"):
        prepare_run(settings, tmp_path / "nothing", "run")
