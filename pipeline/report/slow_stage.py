"""The server whose input is slower than that of the others, and the stage that makes it slow."""

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from pipeline.tuning.stages import WORDS, StageCosts, time_text

SLOW_RATIO = 1.5
"""A server is slow if its input takes this many times as long as that of the others. Equal servers differ by less."""


class SlowStage(NamedTuple):
    """The stage that makes one server slower than the others."""

    server: int
    stage: str
    us: float
    """Microseconds per example on this server."""
    others_us: float
    """The median of the other servers."""

    def sentence(self, unit: str) -> str:
        """Name the server and its stage."""
        return (
            f"The input of server {self.server} is slower than that of the others: {WORDS[self.stage]} takes "
            f"{time_text(self.us)} per {unit}, and {time_text(self.others_us)} on the others."
        )


def slow_stage(servers: Mapping[int, StageCosts]) -> SlowStage | None:
    """Return the slowest of several servers, with the stage that makes it slow; None if all are about equally fast."""
    if len(servers) < 2:
        return None
    totals = {server: sum(costs.elapsed_us.values()) for server, costs in servers.items()}
    slowest = max(totals, key=lambda server: totals[server])
    others = [costs.elapsed_us for server, costs in servers.items() if server != slowest]
    if totals[slowest] < SLOW_RATIO * median(sum(each.values()) for each in others):
        return None
    slow = servers[slowest].elapsed_us
    usual = {stage: median(each.get(stage, 0.0) for each in others) for stage in slow}
    stage = max(slow, key=lambda stage: slow[stage] - usual[stage])
    return SlowStage(slowest, stage, slow[stage], usual[stage])
