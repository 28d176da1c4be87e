"""Which server reads which examples, tested with tables of counts."""

from collections import Counter
from math import ceil

import pytest

from pipeline.dataset.shard_lists import Shard
from pipeline.input.shares import Piece, epoch_order, pieces_between, repeated, share_of
from pipeline.rendezvous.servers import Server


def shards(*counts: int) -> list[Shard]:
    return [Shard(f"s{number}", count, 1, "", "") for number, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("first", "last", "pieces"),
    [
        (0, 9, [("s0", 0, 3, 0), ("s1", 0, 2, 3), ("s3", 0, 4, 5)]),
        (0, 3, [("s0", 0, 3, 0)]),
        (2, 4, [("s0", 2, 1, 2), ("s1", 0, 1, 3)]),
        (3, 7, [("s1", 0, 2, 3), ("s3", 0, 2, 5)]),
        (6, 9, [("s3", 1, 3, 6)]),
        (4, 4, []),
    ],
)
def test_pieces_are_the_parts_of_shards_within_a_range(first: int, last: int, pieces: list[tuple]):
    assert list(pieces_between(shards(3, 2, 0, 4), first, last)) == pieces


@pytest.mark.parametrize(
    ("examples", "pieces"),
    [
        (0, []),
        (2, [("a", 0, 2, 0)]),
        (4, [("a", 0, 3, 0), ("b", 5, 1, 8)]),
        (9, [("a", 0, 3, 0), ("b", 5, 2, 8), ("a", 0, 3, 0), ("b", 5, 1, 8)]),
    ],
)
def test_padding_repeats_if_there_are_too_few_examples(examples: int, pieces: list[tuple]):
    assert list(repeated([Piece("a", 0, 3, 0), Piece("b", 5, 2, 8)], examples)) == pieces


@pytest.mark.parametrize("servers", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("counts", [(7,), (3, 0, 5), (10,) * 10, (1, 2, 3, 4), (1,), (0,)])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_shares_are_even_and_hold_all_examples_once(servers: int, counts: tuple[int, ...], batch_size: int):
    shares = [share_of(shards(*counts), batch_size, Server(index, servers)) for index in range(servers)]
    seen = Counter(
        (piece.name, number)
        for share in shares
        for piece in share.pieces
        for number in range(piece.first, piece.first + piece.examples)
    )
    assert seen == Counter((shard.name, number) for shard in shards(*counts) for number in range(shard.examples))
    assert max(share.examples for share in shares) - min(share.examples for share in shares) <= 1
    for share in shares:
        padding = sum(piece.examples for piece in share.padding)
        assert share.steps == ceil(ceil(sum(counts) / servers) / batch_size)
        assert share.examples + padding == share.steps * batch_size


def test_a_server_without_examples_is_padded_with_examples_of_others():
    share = share_of(shards(1), 2, Server(0, 3))
    assert (share.pieces, share.padding, share.steps) == ((), (Piece("s0", 0, 1, 0), Piece("s0", 0, 1, 0)), 1)


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_a_server_index_out_of_range_is_refused(index: int, count: int):
    with pytest.raises(ValueError, match="server index must be from 0"):
        Server(index, count)


def test_the_order_of_files_is_pinned():
    pieces = [Piece(f"train-{number}", 0, 1, number) for number in range(6)]
    assert epoch_order(pieces, seed=0, epoch=1) == [4, 3, 5, 1, 2, 0]
    assert epoch_order(pieces, seed=0, epoch=2) != epoch_order(pieces, seed=1, epoch=1) != [4, 3, 5, 1, 2, 0]
