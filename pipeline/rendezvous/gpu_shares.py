"""Whether the GPUs can be divided among the training servers so that all have the same number."""

from collections.abc import Sequence
from itertools import combinations

from pipeline.errors import BadInput

PART = "MIG-"
"""The UUID of a part of a divided GPU begins with this."""


def gpus_to_take(seen: Sequence[str], servers: int, per_server: int) -> int:
    """Return how many GPUs a number of servers that see the same GPUs take together.

    `per_server` is the setting, with 0 for all. If some are parts of a divided GPU (MIG), 0 counts as 1, because CUDA
    shows a process only one part.
    """
    has_parts = any(uuid.startswith(PART) for uuid in seen)
    return servers * (per_server or int(has_parts)) or len(seen)


def require_equal_shares(gpus: Sequence[Sequence[str]], per_server: int) -> None:
    """Refuse servers that cannot have the same number of GPUs. TensorFlow would wait forever for the missing ones.

    Args:
        gpus: The GPUs that each server sees, by UUID, in the same order. Servers that see the same GPUs share them.
        per_server: GPUs that each server gets. 0: all that it sees, divided evenly.

    Raises:
        BadInput: If there are too few GPUs, if they do not divide evenly, or if servers see only some of the same GPUs.
    """
    _require_same_or_different(gpus)
    for index, seen in enumerate(gpus):
        servers = gpus.count(seen)
        if per_server * servers > len(seen):
            among = f"{servers} training servers" if servers > 1 else f"training server {index}"
            raise BadInput(
                f"gpus_per_server={per_server} needs {per_server * servers} GPUs for {among}, but the driver shows "
                f"{len(seen)} there: set a smaller gpus_per_server or num_training_servers"
            )
        if per_server > 1 and any(uuid.startswith(PART) for uuid in seen):
            raise BadInput(
                f"gpus_per_server={per_server}, but training server {index} sees parts of a divided GPU (MIG), and "
                "CUDA shows each process only one part: set gpus_per_server=1"
            )
    shares = [_share(gpus, index, per_server) for index in range(len(gpus))]
    if not per_server and len(set(shares)) > 1:
        least = f"set gpus_per_server={min(shares)}, or " if min(shares) else "set "
        raise BadInput(
            f"the GPUs do not divide evenly among the training servers: servers 0 to {len(gpus) - 1} would get "
            f"{', '.join(map(str, shares))}, and all need the same number: {least}another num_training_servers"
        )


def _share(gpus: Sequence[Sequence[str]], index: int, per_server: int) -> int:
    """Return how many GPUs a server gets, if the servers that see the same GPUs take them in turn."""
    seen = gpus[index]
    servers, turn = gpus.count(seen), gpus[:index].count(seen)
    return len(seen[: gpus_to_take(seen, servers, per_server)][turn::servers])


def _require_same_or_different(gpus: Sequence[Sequence[str]]) -> None:
    """Refuse servers that see only some of the same GPUs: one would wait for what the other has taken."""
    for (index, seen), (other, theirs) in combinations(enumerate(gpus), 2):
        if seen != theirs and not set(seen).isdisjoint(theirs):
            raise BadInput(
                f"training servers {index} and {other} see only some of the same GPUs ({', '.join(seen)}; "
                f"{', '.join(theirs)}): set CUDA_VISIBLE_DEVICES so that both see the same GPUs, or none in common"
            )
