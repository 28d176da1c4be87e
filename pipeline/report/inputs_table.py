"""The table of a comparison of inputs, for a terminal."""

from collections.abc import Mapping
from typing import Any

from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.diagnosis import percent, three_digits
from pipeline.tuning.contenders import CONTENDERS
from pipeline.tuning.result import estimate_text


def format_result(result: Mapping[str, Any]) -> str:
    """Return the table as lines for a terminal."""
    epochs = ("first epoch", "later epochs")
    head = (
        "input",
        *epochs,
        "images/s",
        "data wait",
        "ratio (95% interval)",
        "simulated H100s fed",
        "simulated A100s fed",
    )
    table = [head, *(_cells(row) for row in result["rows"])]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    left_out = [
        f"left out: {CONTENDERS[each['contender']].title}, because {each['why']}" for each in result["left_out"]
    ]
    return "\n".join([*lines, "", result["verdict"], *left_out, "", f"page: {result['page']}"])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["title"],
        f"{three_digits(row['first_epoch_s'])} s",
        f"{three_digits(row['epoch_s']['mean'])} s",
        three_digits(row["examples_per_s"]["value"]),
        percent(row["wait_fraction"]),
        estimate_text(Estimate(**row["ratio"]) if row["ratio"] else None),
        *(f"{row['accelerators'][name]:.2g}" for name in ("h100", "a100")),
    )
