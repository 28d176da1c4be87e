"""The training servers: which one, of how many."""

from dataclasses import dataclass
from math import ceil

SERVERS, CLUSTER = "servers", "cluster"
"""Folders of a run: what the servers but the first one have of their own, and where all of them meet."""


def steps_of_epoch(examples: int, servers: int, batch_size: int) -> int:
    """How many batches of `batch_size` examples each of the servers takes: as many as the one with the most."""
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
        """Whether it is the one that writes checkpoints and models."""
        return self.index == 0
