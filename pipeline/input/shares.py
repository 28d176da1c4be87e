"""Divides the examples of a split among servers, and gives the order of an epoch. No TensorFlow.

Shares are ranges of examples, not of files: ten shards on three servers would give one of them a third more to do than
the others, which would wait for it in every epoch. At most two files of a server's share are read by a neighbor, too.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.dataset.manifest import Dataset
from pipeline.dataset.shard_lists import Shard
from pipeline.rendezvous.servers import Server, steps_of_epoch


class Piece(NamedTuple):
    """A range of a shard's examples."""

    name: str
    first: int
    examples: int
    number: int
    """Number of its first example among those of all shards of the split, from 0."""


@dataclass(frozen=True)
class Share:
    """What one server reads of a split in every epoch: each of its own examples once, and padding of weight zero.

    All servers take `steps` batches: with collectives, one that ended before the others would leave them hanging.
    """

    pieces: tuple[Piece, ...]
    padding: tuple[Piece, ...]
    steps: int

    @property
    def examples(self) -> int:
        """How many examples are the server's own, without the padding."""
        return sum(piece.examples for piece in self.pieces)


def share_of(shards: Sequence[Shard], batch_size: int, server: Server) -> Share:
    """Return the share of `server` in batches of `batch_size` examples a server."""
    total = sum(shard.examples for shard in shards)
    own = tuple(pieces_between(shards, *(total * n // server.count for n in (server.index, server.index + 1))))
    steps = steps_of_epoch(total, server.count, batch_size)
    missing = steps * batch_size - sum(piece.examples for piece in own)
    # The padding repeats examples. Black images would change the statistics of batch normalization.
    # A server without an example of its own (fewer examples than servers) repeats those of the others.
    whole = tuple(pieces_between(shards, 0, total))
    return Share(own, tuple(repeated(own or whole, missing)), steps)


def steps_per_epoch(dataset: Dataset, batch_size: int, servers: int = 1, split: str = "train") -> int:
    """Return how many batches of `batch_size` examples each of the servers takes in an epoch."""
    return share_of(dataset.splits[split].shards, batch_size, Server(0, servers)).steps


def pieces_between(shards: Sequence[Shard], first: int, last: int) -> Iterator[Piece]:
    """Yield the examples `first` to `last` (exclusive) of all shards, one after another."""
    before = 0
    for shard in shards:
        begin, end = max(first - before, 0), min(last - before, shard.examples)
        if begin < end:
            yield Piece(shard.name, begin, end - begin, before + begin)
        before += shard.examples


def repeated(pieces: Sequence[Piece], examples: int) -> Iterator[Piece]:
    """Yield the first `examples` of all pieces, beginning again where there are fewer."""
    while examples > 0:
        for piece in pieces:
            if examples > 0:
                yield piece._replace(examples=min(piece.examples, examples))
            examples -= piece.examples


def epoch_order(pieces: Sequence[Piece], seed: int, epoch: int) -> list[int]:
    """Return indices of the pieces in the order of a salted hash of their names: the same anywhere, new each epoch."""
    salt = f"{seed}/{epoch}/"
    return sorted(range(len(pieces)), key=lambda index: hashlib.sha256((salt + pieces[index].name).encode()).digest())


def order_of_need(share: Share, seed: int, epochs: range) -> Iterator[str]:
    """Yield the names of the shards as training reads them in these epochs."""
    for epoch in epochs:
        yield from (share.pieces[index].name for index in epoch_order(share.pieces, seed, epoch))
