"""Charts of the documentation, drawn from the JSON that the benchmarks write.

    python -m benchmarks.input --rates --json FILE
    python -m docs.charts FILE

The second command keeps what the charts need of FILE in docs/figures/input.json, and draws them. Without an argument,
it only draws.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

FIGURES = Path(__file__).parent / "figures" / "input.json"
WIDTH, LABELS, NUMBERS, ROW, TOP = 760, 210, 130, 26, 44
"""Pixels: the chart, the labels on its left, the numbers on its right, a row, and the space above the rows."""
OURS, LIMIT, OTHERS = "#0b6e4f", "#b08900", "#8aa39b"
BACKGROUND, INK = "#f7f9f8", "#16302a"
SHOWN = {
    "**tenfold**, cached in memory": "Tenfold, cached in memory",
    "**tenfold**, prepared pixels": "Tenfold, prepared pixels",
    "**tenfold**, prepared JPEG": "Tenfold, prepared JPEG",
    "limit: libjpeg-turbo alone": "limit: libjpeg-turbo alone",
    "keras_imagenet": "keras_imagenet",
    "best plain tf.data, random-resized crop": "best plain tf.data",
    "**tenfold**, shards as they are": "Tenfold, shards as they are",
    "TFDS": "TFDS",
    "PyTorch DataLoader, 2 workers, simplejpeg": "PyTorch DataLoader",
    "grain, 2 threads, simplejpeg": "grain",
    "WebDataset, 2 workers, simplejpeg": "WebDataset",
    "MosaicML Streaming, 2 workers, simplejpeg": "MosaicML Streaming",
    "article: raw JPEG files": "raw files, whole image",
    "raw files in parallel": "raw files in parallel",
    "best plain tf.data, antialiased": "plain tf.data, antialiased",
    "best plain tf.data, mean of an area": "plain tf.data, mean of area",
    "grain, 2 processes, simplejpeg": "grain, processes",
    "NVIDIA DALI, CPU, 2 threads": "NVIDIA DALI, CPU",
    "SPDL, 2 threads": "SPDL",
    "torchvision in a PyTorch DataLoader, 2 workers": "torchvision, DataLoader",
    "LitData, 2 workers": "LitData",
    "Ray Data, 2 CPUs": "Ray Data",
    "FFCV, JPEG, 2 threads": "FFCV, JPEG",
    "FFCV, pixels of 256 px, 2 threads": "FFCV, pixels",
}
"""Titles of the benchmark that the charts show, and their labels in them."""


REFERENCES = ("limit: libjpeg-turbo alone", "article: raw JPEG files")
"""Titles that the chart of equal work shows, too."""


def input_rates() -> str:
    """Return the chart of the input pipeline at 224 pixels, for the README and the page of benchmarks."""
    return _rates("Images per second, 224 pixels, 2 cores", _figures(), list(SHOWN))


def equal_work_rates() -> str:
    """Return the chart of the pipelines that do the same work with an image."""
    figures = _figures()
    titles = [*figures["equal_work"], *REFERENCES]
    return _rates("Images per second with random-resized crops, 224 pixels, 2 cores", figures, titles)


CHARTS = {"input-rates": input_rates, "input-equal-work": equal_work_rates}


def _figures() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(FIGURES.read_text("utf-8"))
    return figures


def _rates(title: str, figures: dict[str, Any], titles: Sequence[str]) -> str:
    rows = [row for row in figures["rates"] if row["title"] in titles and row["title"] in SHOWN]
    return bars(title, [(SHOWN[row["title"]], rate(row)) for row in rows], str(figures["machine"][0]))


def rate(row: dict[str, Any]) -> float:
    """Return the images per second of a contender: by its median round."""
    return float(row["images"] / median(row["work_s"]))


def keep(results: Path) -> None:
    """Keep titles, numbers of images and seconds of each round of a benchmark. The rest names files of a machine."""
    content = json.loads(results.read_text("utf-8"))
    rates = content["rates"]
    rows = [row for row in rates["224"] if not row["error"]]
    kept = {
        "machine": content["machine"],
        "equal_work": rates["equal_work"],
        "rates": [{name: row[name] for name in ("title", "images", "work_s")} for row in rows],
    }
    FIGURES.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def bars(title: str, rows: list[tuple[str, float]], note: str) -> str:
    """Return horizontal bars as SVG, the longest first. Rows of Tenfold and limits have colors of their own."""
    rows = sorted(rows, key=lambda row: -row[1])
    scale = (WIDTH - LABELS - NUMBERS) / rows[0][1]
    height = TOP + ROW * len(rows) + 34
    texts = [f'<text x="20" y="28" font-size="15" font-weight="600">{escape(title)}</text>']
    for number, (label, value) in enumerate(rows):
        y, color = TOP + ROW * number, _color(label)
        weight = ' font-weight="600"' if color == OURS else ""
        texts += [
            f'<text x="{LABELS}" y="{y + 16}" text-anchor="end"{weight}>{escape(label)}</text>',
            f'<rect x="{LABELS + 10}" y="{y + 3}" width="{value * scale:.1f}" height="17" rx="2" fill="{color}"/>',
            f'<text x="{LABELS + 18 + value * scale:.1f}" y="{y + 16}"{weight}>{value:,.0f}</text>',
        ]
    texts.append(f'<text x="20" y="{height - 12}" font-size="11" fill="#4b5f58">{escape(note)}</text>')
    body = "\n".join(texts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{BACKGROUND}"/>\n{body}\n</svg>\n'
    )


def _color(label: str) -> str:
    if label.startswith("limit"):
        return LIMIT
    return OURS if label.startswith("Tenfold") else OTHERS


if __name__ == "__main__":
    if sys.argv[1:]:
        keep(Path(sys.argv[1]))
    for name, chart in CHARTS.items():
        (Path(__file__).parent / "images" / f"{name}.svg").write_text(chart(), "utf-8")
