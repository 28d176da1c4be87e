"""One Airflow for all tests of this folder that only start runs in it."""

from collections.abc import Iterator

import pytest

from tests.scripts.live import Live


@pytest.fixture(scope="package")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """An Airflow that `up` has started, with the DAGs of this project."""
    live = Live(tmp_path_factory.mktemp("live"))
    code, output = live.command("up")
    try:
        assert code == 0, output
        yield live
    finally:
        live.command("down")
