"""A training server: its number, and how many there are."""

from dataclasses import dataclass
from math import ceil

SERVERS, CLUSTER = "servers", "cluster"
"""Folders of a run: the files of all servers except the first one, and the place where all servers meet."""


def steps_of_epoch(examples: int, servers: int, batch_size: int) -> int:
    """Return the number of batches of `batch_size` examples that each server takes in an epoch.

    All servers take as many as the server with the most examples: with other numbers of steps, they would wait for each
    other forever.
    """
    return ceil(ceil(examples / servers) / batch_size)


@dataclass(frozen=True)
class Server:
    """One of the training servers."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"server index must be from 0 to {self.count - 1}, got {self.index}")

    def __str__(self) -> str:
        return f"server {self.index} of {self.count}"

    @property
    def is_chief(self) -> bool:
        """Whether it is the server that writes checkpoints and models."""
        return self.index == 0
