"""How the training servers of a run find each other, and learn that one is gone: by files that all of them reach.

    cluster/NONCE.json       a process: its server, its address, a count that goes up while it lives, and how it ended
    cluster/NONCE.gang.json  the processes that train together: written once, by the process of server 0 with this nonce

A nonce names one process of one attempt, so that attempts cannot mix. Whether a process is alive follows from its
counts and from the clock of the process that looks: no two clocks are compared. Imports no TensorFlow: a server that
waits for the others holds no GPU.
"""

from pipeline.rendezvous.cluster import Cluster
from pipeline.rendezvous.meeting import join_cluster
from pipeline.rendezvous.presence import report_end

__all__ = ["Cluster", "join_cluster", "report_end"]
