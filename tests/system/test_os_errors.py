"""What errors of the operating system mean, and what is tried again."""

import errno
import os

import pytest

from pipeline.errors import FileSystemError
from pipeline.system import os_errors
from pipeline.system.os_errors import cause_of, retried


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_errors, "PAUSES_S", (0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        *((number, "absent") for number in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)),
        *((number, "forbidden") for number in (errno.EACCES, errno.EPERM, errno.EROFS)),
        *(
            (number, "transient")
            for number in (errno.ESTALE, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT, errno.EDQUOT)
        ),
        *((number, "transient") for number in (errno.ENOMEM, errno.ENOSPC, errno.EINTR, errno.ECONNRESET, 9999)),
    ],
)
def test_an_error_is_transient_unless_proven_otherwise(number: int, cause: str):
    assert cause_of(OSError(number, "words")) == cause


def test_a_reader_that_does_not_understand_bytes_is_no_fault_of_the_system():
    assert cause_of(OSError("not a file of this kind")) == "content"
    assert cause_of(TimeoutError("slow")) == "transient"


def failing(numbers: list[int]) -> object:
    """Something that fails with these errors, one a call, then answers."""

    def work() -> str:
        if numbers:
            raise OSError(numbers.pop(0), "words")
        return "answer"

    return work


def test_what_may_pass_is_tried_again():
    assert retried(failing([errno.ESTALE, errno.EIO, errno.EMFILE]), "file") == "answer"


def test_what_does_not_pass_is_an_error_that_airflow_retries():
    with pytest.raises(FileSystemError, match=r"/a/b could not be used in 4 tries \(words\)"):
        retried(failing([errno.ESTALE] * 4), "/a/b")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_what_is_proven_is_not_tried_again(number: int):
    numbers = [number, errno.ESTALE]
    with pytest.raises(OSError, match=os.strerror(number) if number else ""):
        retried(lambda: os_error(numbers), "file")
    assert numbers == [errno.ESTALE]


def os_error(numbers: list[int]) -> None:
    number = numbers.pop(0)
    raise OSError(number, os.strerror(number))
