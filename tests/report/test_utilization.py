"""The utilization of the machines: the drawn panels, and the sentences about the sampler and the servers."""

import numpy as np
import pandas
import pytest

from pipeline.monitor.gpu_columns import with_gpus_together
from pipeline.monitor.thinned import all_samples
from pipeline.report import utilization as shown

NO_EPOCHS = pandas.DataFrame({"time": []})


def samples(**columns: float | list[float]) -> pandas.DataFrame:
    """Return four samples, 0.2 s apart. `sys__cpu_pct` stands for sys/cpu_pct."""
    named = {name.replace("__", "/"): values for name, values in columns.items()}
    return pandas.DataFrame({"time": 1e9 + 0.2 * np.arange(4), "step": 0, "sys/cpu_pct": 50.0, **named})


def titles(table: pandas.DataFrame) -> list[str]:
    return [panel.title.text for panel in shown.utilization(all_samples(table), NO_EPOCHS).items]


@pytest.mark.parametrize(
    ("columns", "panels"),
    [
        ({}, ["Processor (%)"]),
        ({"gpu__0__util_pct": 0.0}, ["Processor (%)", "GPU (%)"]),  # an idle GPU is relevant too
        ({"gpu__0__util_pct": 5.0, "gpu__1__util_pct": 5.0}, ["Processor (%)", "GPU (%), 2 together"]),
        ({"pressure__cpu_some_pct": 0.0, "sys__cpu_iowait_pct": 0.5}, ["Processor (%)"]),
        (
            {"pressure__cpu_some_pct": 0.0, "sys__cpu_iowait_pct": 5.0},
            ["Processor (%)", "Tasks that wait (% of the time)"],
        ),
        ({"cgroup__cpu_throttled_pct": [0, 0, 9.0, 0]}, ["Processor (%)", "Held back (% of the time)"]),
        ({"sys__disk_read_Bps": 1e3, "sys__disk_write_Bps": 1e3}, ["Processor (%)"]),
        ({"sys__disk_read_Bps": 1e3, "sys__disk_write_Bps": 2e6}, ["Processor (%)", "Disk (MB/s)"]),
        ({"sys__net_recv_Bps": [np.nan, 3e6, 1, 1]}, ["Processor (%)", "Network (MB/s)"]),
        ({"sys__net_recv_Bps": np.nan}, ["Processor (%)"]),
    ],
)
def test_only_panels_with_relevant_values_are_drawn(columns: dict[str, float], panels: list[str]):
    assert titles(samples(**columns)) == panels


def test_a_curve_without_values_is_left_out_of_its_panel():
    table = samples(sys__net_recv_Bps=np.nan, sys__net_sent_Bps=3e6)
    panel = next(panel for panel in shown.PANELS if panel.title.startswith("Network"))
    assert [curve.label for curve in shown.telling(panel, table)] == ["sent"]


def test_panels_share_a_time_axis_and_zoom_only_that():
    figure = shown.utilization(all_samples(samples(sys__mem_pct=10.0)), NO_EPOCHS)
    assert len({panel.x_range.id for panel in figure.items}) == 1
    assert {tool.dimensions for panel in figure.items for tool in panel.tools if hasattr(tool, "zoom_on_axis")} == {
        "width"
    }


def test_gpu_metrics_are_combined():
    of_gpus = {
        "util_pct": (80.0, 100.0),
        "mem_used_bytes": (10.0, 30.0),
        "mem_total_bytes": (100.0, 100.0),
        "power_w": (300.0, 400.0),
        "throttled_power": (0.0, 1.0),
    }
    table = samples(**{f"gpu__{gpu}__{name}": of_gpus[name][gpu] for name in of_gpus for gpu in (0, 1)})
    together = with_gpus_together(table).iloc[0]
    assert together.filter(regex="^gpu/[a-z]").to_dict() == {
        "gpu/util_pct": 90.0,
        "gpu/power_w": 700.0,
        "gpu/mem_pct": 20.0,
        "gpu/throttled_power": 50.0,
    }
    assert shown.throttle_sentence(with_gpus_together(table)) == "Held back: GPU, by its power limit, 50% of the time."


def test_the_sentence_compares_power_with_its_limit():
    table = samples(gpu__0__util_pct=90.0, gpu__0__power_w=650.0, gpu__0__power_limit_w=700.0)
    assert "the GPU 90%, drawing 650 of at most 700 W" in shown.utilization(all_samples(table), NO_EPOCHS).sentence


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "busy on average (4 samples); no GPU was found."),
        # Of a part of a divided GPU (MIG), only the memory is measured.
        (
            {"gpu__0__mem_used_bytes": 5e9, "gpu__0__mem_total_bytes": 10e9},
            "busy on average (4 samples); the use of the GPU is not known.",
        ),
    ],
)
def test_the_sentence_says_whether_there_is_a_gpu(columns: dict[str, float], words: str):
    assert words in shown.utilization(all_samples(samples(**columns)), NO_EPOCHS).sentence


def test_thousands_of_watts_have_a_comma():
    table = samples(gpu__0__util_pct=90.0, gpu__0__power_w=5000.0, gpu__0__power_limit_w=5600.0)
    figure = shown.utilization(all_samples(table), NO_EPOCHS)
    watts = next(panel for panel in figure.items if panel.title.text == "GPU power (W)")
    assert [axis.formatter.format for axis in watts.yaxis] == ["0,0.[0000]"]


@pytest.mark.parametrize(
    ("columns", "note"),
    [
        ({}, ""),
        ({"monitor__tick_late_ms": 19.0, "monitor__sample_ms": 9.0, "monitor__dropped": 0.0}, ""),
        ({"monitor__tick_late_ms": 40.0}, "The sampler was held up: one sample in twenty was more than 40 ms late. "),
        ({"monitor__sample_ms": [2.0, 30, 30, 30]}, "The sampler was held up: taking a sample took 30 ms. "),
        ({"monitor__dropped": [0.0, 1, 1, 1]}, "The sampler was held up: 1 sample was left out. "),
        ({"monitor__dropped": [2.0, 3, 0, 1]}, "The sampler was held up: 4 samples were left out. "),  # two processes
    ],
)
def test_a_delayed_sampler_is_reported(columns: dict[str, float | list[float]], note: str):
    sentence = shown.sampler_sentence(samples(**columns))
    assert sentence == (note and note + shown.WHY_LATE)
    assert (sentence in shown.utilization(all_samples(samples(**columns)), NO_EPOCHS).notes) == bool(sentence)


def test_each_server_has_a_line_and_the_sentence_names_the_least_busy():
    machines = [samples(gpu__0__util_pct=95.0), samples(gpu__0__util_pct=40.0), samples(sys__cpu_pct=70.0)]
    figure = shown.servers(dict(enumerate(map(all_samples, machines))), NO_EPOCHS)
    assert figure.sentence.startswith(
        "On average, server 1 was the least busy with 40%, and server 0 the busiest with 95%"
    )
    lines = [line.name for line in figure.items[0].renderers if line.name]
    assert lines == ["server 0", "server 1", "server 2"]


def test_only_the_least_busy_of_many_servers_are_drawn():
    machines = {index: all_samples(samples(sys__cpu_pct=90.0 - index)) for index in range(40)}
    figure = shown.servers(machines, NO_EPOCHS)
    lines = [line.name for line in figure.items[0].renderers if line.name]
    assert lines == [f"server {index}" for index in range(40 - shown.MAX_LINES, 40)]
    assert f"the {shown.MAX_LINES} least busy of 40 servers" in figure.sentence
    assert (
        len({(line.glyph.line_color, str(line.glyph.line_dash)) for line in figure.items[0].renderers if line.name})
        == shown.MAX_LINES
    )


def test_a_server_without_a_record_is_left_out():
    machines = {0: all_samples(samples()), 1: all_samples(pandas.DataFrame({"time": [], "step": []}))}
    assert shown.servers(machines, NO_EPOCHS).items == ()
