"""Questions to buckets, each in its own thread, so that no page waits long for a bucket that does not answer."""

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.errors import StorageError
from pipeline.system.parallel import start_in_thread
from pipeline.watch.summary import PATIENCE_S

MAX_PER_BUCKET = 4
"""Maximum number of questions to one bucket at once. A silent bucket blocks only their threads."""
AT_ONCE = 16
"""Maximum number of questions to all buckets at once, except for the only question to a bucket."""
MAX_AT_ONCE = 64
"""Maximum number of questions at once, including the only questions to their buckets."""
_Answer = TypeVar("_Answer")


class NoAnswer(StorageError):
    """A bucket has not answered yet. The question stays under way."""


@dataclass(frozen=True)
class _Question:
    bucket: str
    begin: float
    """Time of the question by the monotonic clock, in seconds."""
    answer: Future[Any]

    def remaining_s(self, patience_s: float) -> float:
        """Return the seconds until a page with this patience gives up on the answer."""
        return max(0.0, self.begin + patience_s - time.monotonic())


class Questions:
    """Asks buckets, each question once at a time. Any number of threads may use it.

    `patience_s` is how long a page waits for an answer, in seconds; None is PATIENCE_S.
    """

    def __init__(self, patience_s: float | None = None) -> None:
        self._own_patience_s = patience_s
        self._changed = threading.Condition()
        self._under_way: dict[Hashable, _Question] = {}

    def ask(self, bucket: str, key: Hashable, work: Callable[[], _Answer], name: str = "") -> _Answer:
        """Return the result of `work`, which asks a bucket, or raise its exception.

        A call with the `key` of a question under way waits for the answer to that question. `name` is what an error
        calls the bucket, if it is another store, such as a file system.

        Raises StorageError if there are MAX_AT_ONCE questions, and NoAnswer if a page has lost patience with the
        question since it was first asked. It stays under way, so that a later call may get the answer.
        """
        deadline, name = time.monotonic() + self._patience_s, name or f"gs://{bucket}"
        with self._changed:
            self._changed.wait_for(lambda: self._can_go_on(bucket, key), self._patience_s)
            question = self._under_way.get(key)
            if question is None and self._has_room(bucket):
                question = _Question(bucket, time.monotonic(), start_in_thread(work, f"question to {name}"))
                self._under_way[key] = question
                question.answer.add_done_callback(lambda _: self._end(key))
            is_asked = bool(self._of(bucket))
        if question is not None:
            wait([question.answer], min(question.remaining_s(self._patience_s), max(0.0, deadline - time.monotonic())))
            if question.answer.done():
                answer: _Answer = question.answer.result()
                return answer
        if not is_asked:
            raise StorageError(
                f"{name} was not read, because {MAX_AT_ONCE} other requests have no answer yet: try again later"
            )
        raise NoAnswer(
            f"{name} has not answered within {self._patience_s:.0f} s: try again later, or check the network and the "
            "status of Google Cloud Storage"
        )

    @property
    def _patience_s(self) -> float:
        return PATIENCE_S if self._own_patience_s is None else self._own_patience_s

    def _can_go_on(self, bucket: str, key: Hashable) -> bool:
        """Whether a call need not wait: there is room, or all questions to the bucket are over their time."""
        of_bucket = self._of(bucket)
        is_silent = len(of_bucket) >= MAX_PER_BUCKET and not any(
            each.remaining_s(self._patience_s) for each in of_bucket
        )
        return key in self._under_way or self._has_room(bucket) or is_silent

    def _has_room(self, bucket: str) -> bool:
        of_bucket = len(self._of(bucket))
        # Four silent buckets take all of AT_ONCE: another one that answers must not wait for them.
        return of_bucket < MAX_PER_BUCKET and len(self._under_way) < (AT_ONCE if of_bucket else MAX_AT_ONCE)

    def _of(self, bucket: str) -> list[_Question]:
        return [each for each in self._under_way.values() if each.bucket == bucket]

    def _end(self, key: Hashable) -> None:
        with self._changed:
            del self._under_way[key]
            self._changed.notify_all()
