"""What the stages of the input cost, as the report and the page of a running training show it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bokeh.models import HoverTool, Range1d

from pipeline.monitor.diagnosis import percent
from pipeline.report.drawing import BLUE, GRAY, GREEN, ORANGE, VERMILION, Figure, add_legend, new_plot
from pipeline.report.slow_stage import slow_stage
from pipeline.system.wording import range_text
from pipeline.tuning.stages import WORDS, StageCosts, stages_of_servers, time_text

TITLE = "What the input does"
LOOKS = {
    "read": (ORANGE, "x"),
    "parse": (GREEN, "."),
    "decode": (VERMILION, "/"),
    "resize": (BLUE, " "),
    "batch": (GRAY, "-"),
}
"""Color and hatch of each stage."""


@dataclass(frozen=True)
class InputStages:
    """The costs of the stages on each training server that measured them, by its index. There is at least one."""

    servers: Mapping[int, StageCosts]

    @property
    def unit(self) -> str:
        """What an example is. Rows are not decoded."""
        return "image" if "decode" in self.stages else "row"

    @property
    def stages(self) -> list[str]:
        """The names of the stages, in their order."""
        return [stage for stage in LOOKS if any(stage in costs.us for costs in self.servers.values())]

    @property
    def sentence(self) -> str:
        """What each stage takes of the time of an example, and which server is slow."""
        first, *others = self.servers
        of_server = f"{self.unit} on server {first}" if others else self.unit
        slow = slow_stage(self.servers)
        sentences = self.servers[first].sentence(of_server), slow.sentence(self.unit) if slow else ""
        return " ".join(filter(None, sentences))

    @property
    def head(self) -> tuple[str, ...]:
        """The head of `rows`."""
        return ("stage", f"time per {self.unit}", "95% interval", "share", "elapsed")

    @property
    def rows(self) -> list[list[str]]:
        """The numbers of a table: one row for each stage of each server."""
        return [
            [
                f"{self.name_of(server)} {WORDS[stage]}".strip(),
                time_text(us.value),
                range_text(time_text(us.low), time_text(us.high)),
                percent(costs.shares[stage]),
                time_text(costs.elapsed_us[stage]) if stage in costs.elapsed_us else "-",
            ]
            for server, costs in self.servers.items()
            for stage, us in costs.us.items()
        ]

    @property
    def bars(self) -> list[dict[str, Any]]:
        """A bar for each server, as JSON has it: its name, and the parts with label, color and time in ms."""
        return [
            {
                "name": self.name_of(server),
                "parts": [
                    {"label": WORDS[stage], "color": LOOKS[stage][0], "ms": us.value / 1000}
                    for stage, us in costs.us.items()
                ],
            }
            for server, costs in self.servers.items()
        ]

    def name_of(self, server: int) -> str:
        """Return the name of a server; empty if there is only one."""
        return f"server {server}" if len(self.servers) > 1 else ""

    def figure(self) -> Figure:
        """Draw a bar for each server: the milliseconds that each stage takes of an example."""
        servers, stages = list(self.servers)[::-1], self.stages  # Bokeh draws from below.
        plot = new_plot(f"Processor time per {self.unit}", "ms", height=110 + 34 * len(servers), along="width")
        plot.y_range = Range1d(0, len(servers))
        plot.x_range.start = 0
        middles = [number + 0.5 for number in range(len(servers))]
        costs = [self.servers[server] for server in servers]
        source = {"y": middles} | {
            stage: [each.us[stage].value / 1000 if stage in each.us else 0.0 for each in costs] for stage in stages
        }
        colors, hatches = zip(*(LOOKS[stage] for stage in stages), strict=True)
        bars = plot.hbar_stack(
            stages, y="y", height=0.7, source=source, color=colors, hatch_pattern=hatches, hatch_color="white",
            hatch_alpha=0.45, hatch_scale=8, line_color=None, name=stages,
        )  # fmt: skip
        plot.yaxis.ticker = middles
        names = {middle: self.name_of(server) or " " for middle, server in zip(middles, servers, strict=True)}
        plot.yaxis.major_label_overrides = names
        plot.ygrid.visible = False
        add_legend(plot, [(WORDS[stage], [bar]) for stage, bar in zip(stages, bars, strict=True)])
        for stage, bar in zip(stages, bars, strict=True):
            plot.add_tools(HoverTool(renderers=[bar], tooltips=[(WORDS[stage], f"@{{{stage}}}{{0.000}} ms")]))
        return Figure("stages", TITLE, self.sentence, (plot,), is_stacked=True)


def input_stages(training: Path) -> InputStages | None:
    """Return what the servers of a training measured; None if none of them did."""
    servers = stages_of_servers(training)
    return InputStages(servers) if servers else None
