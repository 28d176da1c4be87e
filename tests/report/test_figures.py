"""Figures of a training: their sentences and their plots."""

from dataclasses import replace

import pandas
import pytest
from bokeh.models import HoverTool

from pipeline.evaluation.one_label import ACCURACY
from pipeline.monitor.diagnosis import seconds_by_epoch, seconds_by_part
from pipeline.report import compare_page, figures
from pipeline.report.compare import Comparison
from pipeline.report.drawing import Figure, embedded
from tests.report.compared_runs import run_with

NOTHING = pandas.DataFrame({"time": [], "step": []})
BATCHES = pandas.DataFrame(
    {
        "epoch": [1, 1, 2, 2],
        "first": [1, 0, 0, 0],
        "input/wait_ms": [100.0, 100.0, 100.0, 100.0],
        "step/compute_ms": [500.0, 500.0, 500.0, 500.0],
        "step/host_ms": [50.0, 50.0, 50.0, 50.0],
        "step/checkpoint_ms": [0.0, 0.0, 0.0, 400.0],
        "step/time_ms": [650.0, 650.0, 650.0, 1050.0],
    }
)
EPOCHS = pandas.DataFrame(
    {"step": [1], "time": [9.0], "epoch/time_s": [1.3], "epoch/validation_s": [1.0], "epoch/callbacks_s": [1.0]}
)


def test_a_tooltip_names_the_quantity_of_its_plot():
    epochs = pandas.DataFrame({"step": [1], "loss": [0.5], "val_loss": [0.6]})
    lines = [
        figures.Line("training", epochs, "loss", "red", "solid", "circle"),
        figures.Line("validation", epochs, "val_loss", "blue", "dashed", "circle"),
    ]
    plots = figures.learning_figure("", ACCURACY, lambda _: lines).items
    assert [plot.select_one(HoverTool).tooltips[-1][0] for plot in plots] == ["loss", "accuracy"]


def test_a_sentence_divides_a_second_into_parts():
    assert figures.spent_sentence(seconds_by_part(BATCHES, EPOCHS)) == (
        "An average second of the training consists of 80 ms waiting for data, 400 ms computing, 40 ms host, 80 ms "
        "checkpoints, 200 ms validation, 200 ms callbacks (5 s in total, all steps included)."
    )
    count = figures.MAX_EPOCHS + 7
    last = figures.spent_sentence({"computing": 1.0}, count)
    assert f"the last {figures.MAX_EPOCHS} of {count:,} epochs" in last


def test_a_bar_is_a_second_or_an_epoch_and_has_only_parts_that_take_time():
    whole = figures.shares_of_a_second({"": seconds_by_part(BATCHES, EPOCHS)}).renderers
    assert {bar.name: whole[0].data_source.data[bar.name] for bar in whole} == {
        "waiting for data": [80],
        "computing": [400],
        "host": [40],
        "checkpoints": [80],
        "validation": [200],
        "callbacks": [200],
    }
    by_epoch = figures.epoch_bars(seconds_by_epoch(BATCHES, EPOCHS)).renderers
    drawn = by_epoch[0].data_source.data
    assert {name: values.tolist() for name, values in drawn.items()} == {
        "epoch": [1, 2],
        "waiting for data": [0.2, 0.2],
        "computing": [1.0, 1.0],
        "host": [0.1, 0.1],
        "checkpoints": [0.0, 0.4],
        "validation": [1.0, 0.0],  # the second epoch is not finished
        "callbacks": [1.0, 0.0],
    }
    few = BATCHES.drop(columns=["step/checkpoint_ms", "step/host_ms"])
    bars = figures.epoch_bars(seconds_by_epoch(few, NOTHING))
    assert [bar.name for bar in bars.renderers] == ["waiting for data", "computing"]


@pytest.mark.parametrize(("times", "titles"), [([1.0], []), ([1.0, 3.0], ["Time of an epoch", "Validation after it"])])
def test_the_times_of_epochs_are_drawn_as_a_distribution(times: list[float], titles: list[str]):
    epochs = pandas.DataFrame({"epoch/time_s": times, "epoch/validation_s": times})
    figure = figures.times(BATCHES.iloc[:0], epochs)
    assert [item.title.text for item in figure.items] == titles
    assert ("An epoch took from 1 to 3 s (median 2 s)." in figure.sentence) == bool(titles)


def test_long_times_are_written_without_exponents():
    batches = pandas.concat([BATCHES] * 3, ignore_index=True)
    assert (
        "took less than 650 ms, 95% took less than 1,050 ms, and the slowest took 1,050 ms"
        in figures.times(batches, NOTHING).sentence
    )


def test_loss_and_accuracy_share_an_axis_and_the_wheel_does_not_zoom():
    epochs = pandas.DataFrame({"step": [1, 2], "loss": [2.0, 1.0], "accuracy": [0.1, 0.2]})
    loss, accuracy = figures.learning(epochs).items
    assert loss.x_range is accuracy.x_range
    assert loss.toolbar.active_scroll is None
    assert [type(tool).__name__ for tool in loss.toolbar.tools].count("WheelZoomTool") == 1


def test_all_plots_of_a_page_are_roots_of_one_document():
    epochs = pandas.DataFrame({"step": [1, 2], "loss": [2.0, 1.0], "accuracy": [0.1, 0.2]})
    drawn = embedded([figures.learning(epochs), Figure("none", "None", "Nothing.")])
    assert list(drawn["documents"]) == ["figures"]
    assert list(drawn["render"][0]["roots"].values()) == ["learning-0", "learning-1"]
    assert embedded([Figure("none", "None", "Nothing.")]) == {}


def test_simulated_runs_have_no_learning_curves():
    epochs = pandas.DataFrame({"step": [1, 2]})
    simulated = [replace(run_with(settings={"simulated_step_ms": 2.0}), epochs=epochs)] * 2
    of_one, of_two = figures.learning(epochs), compare_page.learning(Comparison(simulated))
    assert of_one.sentence == of_two.sentence
    assert of_two.sentence == "The steps were simulated and computed nothing, so there is nothing to show."


def test_the_sentence_of_one_epoch_names_no_range() -> None:
    epochs = pandas.DataFrame({"step": [1, 2], "loss": [1.0, 0.5], "val_accuracy": [0.09, 0.5]})
    assert figures.learning_sentence(epochs[:1]) == "After one epoch, training loss is 1 and validation accuracy 9.0%."
    assert figures.learning_sentence(epochs[["step", "loss"]][:1]) == "After one epoch, training loss is 1."
    assert figures.learning_sentence(epochs).startswith("Training loss went from 1 to 0.5 in 2 epochs; validation acc")


def test_equal_epochs_have_one_time() -> None:
    epochs = pandas.DataFrame({"step": [1, 2], "epoch/time_s": [1.8, 1.801]})
    assert "Each epoch took 1.8 s." in figures.times(BATCHES, epochs).sentence
