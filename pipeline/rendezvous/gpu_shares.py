"""Whether the GPUs can be divided among the training servers so that all have the same number."""

from collections.abc import Sequence

from pipeline.errors import BadInput


def require_equal_shares(gpus: Sequence[Sequence[str]], per_server: int) -> None:
    """Refuse servers that cannot have the same number of GPUs. TensorFlow would wait forever for the missing ones.

    Args:
        gpus: The GPUs that each server sees, by UUID. Servers that see the same GPUs share them.
        per_server: GPUs that each server gets. 0: all that it sees, divided evenly.

    Raises:
        BadInput: If there are too few GPUs, or if they do not divide evenly. It has the numbers.
    """
    for index, seen in enumerate(gpus):
        servers = gpus.count(seen)
        if per_server * servers > len(seen):
            among = f"{servers} training servers" if servers > 1 else f"training server {index}"
            raise BadInput(
                f"gpus_per_server={per_server} needs {per_server * servers} GPUs for {among}, but the driver shows "
                f"{len(seen)} there: set a smaller gpus_per_server or num_training_servers"
            )
    # A server's share, if the servers that see the same GPUs take them in turn.
    shares = [len(seen[gpus[:index].count(seen) :: gpus.count(seen)]) for index, seen in enumerate(gpus)]
    if not per_server and len(set(shares)) > 1:
        least = f"set gpus_per_server={min(shares)}, or " if min(shares) else "set "
        raise BadInput(
            f"the GPUs do not divide evenly among the training servers: servers 0 to {len(gpus) - 1} would get "
            f"{', '.join(map(str, shares))}, and all need the same number: {least}another num_training_servers"
        )
