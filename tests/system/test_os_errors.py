"""The causes of operating system errors, and which errors are retried."""

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


def test_an_error_without_a_number_is_an_error_of_the_content():
    assert cause_of(OSError("not a file of this kind")) == "content"
    assert cause_of(TimeoutError("slow")) == "transient"


def failing(numbers: list[int]) -> object:
    """Return a function that raises these errors, one per call, and then returns an answer."""

    def work() -> str:
        if numbers:
            raise OSError(numbers.pop(0), "words")
        return "answer"

    return work


def test_transient_errors_are_retried():
    assert retried(failing([errno.ESTALE, errno.EIO, errno.EMFILE]), "file") == "answer"


def test_an_error_that_stays_raises_a_file_system_error():
    with pytest.raises(FileSystemError, match=r"/a/b could not be used in 4 attempts \(words\)"):
        retried(failing([errno.ESTALE] * 4), "/a/b")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_a_permanent_error_is_not_retried(number: int):
    numbers = [number, errno.ESTALE]
    with pytest.raises(OSError, match=os.strerror(number) if number else ""):
        retried(lambda: os_error(numbers), "file")
    assert numbers == [errno.ESTALE]


def os_error(numbers: list[int]) -> None:
    number = numbers.pop(0)
    raise OSError(number, os.strerror(number))
