"""How the training servers of a run find each other, and learn that one is gone: by files that all of them reach.

    cluster/NONCE.json       a process: which server it is, where, a count that goes up while it lives, and how it ended
    cluster/NONCE.gang.json  who trains together: written once, by the process of server 0 whose nonce it bears

A nonce names one process of one try, so that tries cannot mix. Who is alive is told by the counts and the clock of
whoever looks: no two clocks are compared. Imports no TensorFlow: a server that waits for the others holds no GPU.
"""

from pipeline.rendezvous.gang import Gang
from pipeline.rendezvous.meeting import joined
from pipeline.rendezvous.presence import say_ended

__all__ = ["Gang", "joined", "say_ended"]
