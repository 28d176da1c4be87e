"""The error message that a failed task stores for the plugin."""

from typing import Any

import pytest

from dags.defaults import MAX_CHARACTERS, store_failure
from dags.xcom_keys import FAILURE
from pipeline.errors import SourceError


class TaskInstance:
    """A fake task instance that keeps pushed XComs. In Airflow, that needs a running task."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SourceError("source_uri must be a folder that exists, got '/nowhere'"), "source_uri must be a folder that "),
        (KeyError("step/time_ms"), "KeyError: 'step/time_ms'"),
        ("killed by its supervisor", "killed by its supervisor"),
        (None, "it ended without an error"),
    ],
)
def test_the_error_message_is_stored(error: Any, message: str) -> None:
    instance = TaskInstance()
    store_failure({"ti": instance, "exception": error})
    assert instance.pushed[FAILURE].startswith(message)


def test_secrets_are_masked_and_long_messages_are_truncated() -> None:
    from airflow.sdk.log import mask_secret

    mask_secret("hunter2-hunter2")
    instance = TaskInstance()
    store_failure({"ti": instance, "exception": ValueError("the password hunter2-hunter2 is refused" + 3000 * "x")})
    assert instance.pushed[FAILURE].startswith("ValueError: the password *** is refused")
    assert len(instance.pushed[FAILURE]) == MAX_CHARACTERS


def test_a_file_name_that_is_not_utf_8_is_escaped_in_the_message() -> None:
    instance = TaskInstance()
    store_failure({"ti": instance, "exception": OSError("'/data/caf\udce9.jpg' cannot be read")})
    assert instance.pushed[FAILURE] == r"OSError: '/data/caf\udce9.jpg' cannot be read"


def test_nothing_is_stored_outside_the_process_of_the_task() -> None:
    instance = TaskInstance()
    store_failure({"ti": instance})
    assert instance.pushed == {}
