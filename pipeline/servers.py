"""The training servers: which one, of how many."""

from dataclasses import dataclass

SERVERS, CLUSTER = "servers", "cluster"
"""Folders of a run: what the servers but the first one have of their own, and where all of them meet."""


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
