"""How the training servers of a run find each other, and learn that one is gone: with files that all of them reach.

    cluster/NONCE.json       a process: its server, its address, a count that goes up while it lives, and how it ended
    cluster/NONCE.members.json  the processes that train together: written once, by server 0 with this nonce

A nonce identifies one process of one attempt, so that attempts cannot mix. A process is alive if another process sees
its count go up, by the clock of the other process. Clocks of two machines are never compared. This package does not
import TensorFlow, so that a server that waits for the others holds no GPU.
"""

from pipeline.rendezvous.cluster import Cluster
from pipeline.rendezvous.meeting import join_cluster
from pipeline.rendezvous.presence import report_end

__all__ = ["Cluster", "join_cluster", "report_end"]
