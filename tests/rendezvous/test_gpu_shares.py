"""GPUs that do or do not divide evenly among the training servers."""

from collections.abc import Sequence

import pytest

from pipeline.errors import BadInput
from pipeline.rendezvous.gpu_shares import require_equal_shares

EIGHT, FOUR = [f"GPU-{number}" for number in range(8)], [f"GPU-x{number}" for number in range(4)]
PARTS = [f"MIG-{number}" for number in range(7)]


@pytest.mark.parametrize(
    ("gpus", "per_server"),
    [
        ([[]], 0),
        ([[], []], 0),
        ([EIGHT], 0),
        ([EIGHT], 8),
        ([EIGHT] * 4, 0),
        ([EIGHT] * 3, 2),
        ([EIGHT, EIGHT, FOUR], 0),
        ([EIGHT, FOUR], 4),
        ([["GPU-0"], ["GPU-1"]], 0),
        ([PARTS], 0),
        ([PARTS, PARTS], 0),
        ([PARTS] * 7, 1),
        ([PARTS, ["GPU-0"]], 0),
    ],
)
def test_equal_shares_are_accepted(gpus: Sequence[Sequence[str]], per_server: int):
    require_equal_shares(gpus, per_server)


@pytest.mark.parametrize(
    ("gpus", "per_server", "message"),
    [
        ([EIGHT] * 3, 0, "servers 0 to 2 would get 3, 3, 2, and all need the same number: set gpus_per_server=2, or"),
        ([EIGHT, FOUR], 0, "servers 0 to 1 would get 8, 4, .*: set gpus_per_server=4"),
        ([FOUR, []], 0, "servers 0 to 1 would get 4, 0, .*: set another num_training_servers"),
        ([FOUR] * 5, 0, "would get 1, 1, 1, 1, 0, .*: set another num_training_servers"),
        ([EIGHT] * 3, 3, "gpus_per_server=3 needs 9 GPUs for 3 training servers, but the driver shows 8 there"),
        ([EIGHT, FOUR], 5, "gpus_per_server=5 needs 5 GPUs for training server 1, but the driver shows 4"),
        ([EIGHT[:2], EIGHT[1:3]], 0, "0 and 1 see only some of the same GPUs .GPU-0, GPU-1; GPU-1, GPU-2.: set CUDA_"),
        ([FOUR, EIGHT, EIGHT[:4]], 2, "training servers 1 and 2 see only some of the same GPUs"),
        ([PARTS], 2, r"gpus_per_server=2, .* server 0 sees parts of a divided GPU \(MIG\).* set gpus_per_server=1"),
        ([PARTS, EIGHT], 0, "servers 0 to 1 would get 1, 8, .*: set gpus_per_server=1"),
        ([PARTS] * 8, 0, "would get 1, 1, 1, 1, 1, 1, 1, 0, .*: set another num_training_servers"),
        ([[]], 1, "gpus_per_server=1 needs 1 GPUs for training server 0, but the driver shows 0"),
    ],
)
def test_other_shares_are_refused_with_the_numbers(gpus: Sequence[Sequence[str]], per_server: int, message: str):
    with pytest.raises(BadInput, match=message):
        require_equal_shares(gpus, per_server)
