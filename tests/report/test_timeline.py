"""The timeline of a training: which part of the time is in which part of the axis."""

import numpy as np
import pandas
import pytest
from bokeh.models import CrosshairTool, HoverTool

from pipeline.monitor.thinned import all_samples
from pipeline.report.timeline import MAX_POINTS, shares_of_bins, timeline

NO_EPOCHS = pandas.DataFrame({"time": [], "step": []})
NO_SAMPLES = all_samples(pandas.DataFrame({"time": [], "step": []}))
STEPS = pandas.DataFrame(
    {
        "time": [1002.0, 1004.0, 1010.0],
        "epoch": [1, 1, 2],
        "first": [1, 0, 0],
        "input/wait_ms": [1000.0, 1000.0, 0.0],
        "step/compute_ms": [1000.0, 1000.0, 2000.0],
        "step/time_ms": [2000.0, 2000.0, 2000.0],
    }
)
"""Two steps of two seconds, a validation of three seconds and one second of callbacks, and another step."""
EPOCHS = pandas.DataFrame({"step": [1], "time": [1008.0], "epoch/validation_s": [3.0], "epoch/callbacks_s": [1.0]})


def shares(
    edges: list[float], steps: pandas.DataFrame = STEPS, epochs: pandas.DataFrame = EPOCHS
) -> dict[str, list[float]]:
    ends = steps["time"].to_numpy()
    found = shares_of_bins(steps, epochs, ends - steps["step/time_ms"].to_numpy() / 1000, ends, np.array(edges))
    return {part: values.round(6).tolist() for part, values in found.items()}


def test_the_time_of_a_step_or_validation_is_spread_over_the_parts_of_the_axis_that_it_covers():
    assert shares([1000.0, 1001.0, 1005.0, 1007.5, 1010.0]) == {
        "waiting for data": [50.0, 37.5, 0.0, 0.0],
        "computing": [50.0, 37.5, 0.0, 80.0],
        "validation": [0.0, 25.0, 80.0, 0.0],
        "callbacks": [0.0, 0.0, 20.0, 20.0],
    }


def test_the_shares_of_all_parts_of_the_axis_add_up_to_the_recorded_seconds():
    edges = np.linspace(1000.0, 1010.0, 38)
    found = shares(edges.tolist())
    seconds = {part: sum(values) / 100 * (edges[1] - edges[0]) for part, values in found.items()}
    assert seconds == pytest.approx({"waiting for data": 2, "computing": 4, "validation": 3, "callbacks": 1}, rel=1e-4)


def test_the_panels_share_one_axis_and_one_pointer():
    samples = pandas.DataFrame({"time": 1000.0 + np.arange(11), "step": 0, "sys/cpu_pct": 50.0, "gpu/0/util_pct": 90.0})
    summary, machine = timeline(STEPS, EPOCHS, all_samples(samples))
    assert [plot.title.text for plot in summary.items] == [
        "Parts of the time (%)", "Time of a step (ms)", "Busy (%)",
    ]  # fmt: skip
    plots = [*summary.items, *machine.items]
    assert len({plot.x_range.id for plot in plots}) == 1
    assert len({plot.select_one(CrosshairTool).overlay.id for plot in plots}) == 1
    assert summary.items[0].select_one(HoverTool).mode == "vline"
    assert summary.sentence == (
        "An average second of the training consists of 200 ms waiting for data, 400 ms computing, 300 ms validation, "
        "100 ms callbacks (10 s in total, all steps included). Dotted lines are the ends of epochs."
    )
    assert (plots[0].x_range.start, plots[0].x_range.end) == (0, 10)


def test_a_training_without_samples_shows_its_steps():
    summary, machine = timeline(STEPS, NO_EPOCHS, NO_SAMPLES)
    assert len(summary.items) == 2
    assert machine.items == ()


def test_without_a_step_there_is_nothing_to_show():
    summary, _ = timeline(pandas.DataFrame({"time": [], "step": []}), NO_EPOCHS, NO_SAMPLES)
    assert (summary.sentence, summary.items) == ("No step was recorded, so there is nothing to show.", ())


def test_a_curve_of_many_steps_has_few_points_and_keeps_the_longest_step():
    count = 20 * MAX_POINTS
    times = np.full(count, 10.0)
    times[777] = 900.0
    steps = pandas.DataFrame(
        {
            "time": 1000 + np.cumsum(times) / 1000, "epoch": 1, "first": 0, "input/wait_ms": 1.0,
            "step/compute_ms": times - 1, "step/time_ms": times,
        }
    )  # fmt: skip
    longest, mean, wait = [
        line.data_source.data["y"] for line in timeline(steps, NO_EPOCHS, NO_SAMPLES)[0].items[1].renderers
    ]
    assert len(mean) == MAX_POINTS
    assert (longest.max(), mean.max()) == (900.0, pytest.approx(10 + 890 / 20))
    assert set(wait) == {1.0}


def test_the_first_step_of_a_process_does_not_flatten_the_others():
    steps = STEPS.assign(**{"step/time_ms": [900_000.0, 2000.0, 2000.0]})
    curves = timeline(steps, NO_EPOCHS, NO_SAMPLES)[0].items[1].renderers
    assert max(np.nanmax(line.data_source.data["y"]) for line in curves) == 2000.0
