"""Charts of the documentation, drawn from the JSON that the benchmarks write.

    python -m benchmarks.input --rates --json FILE
    python -m docs.charts FILE

The second command keeps what a chart needs of FILE in docs/figures, and draws the charts. Without FILE, it only draws.
"""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

FIGURES = Path(__file__).parent / "figures"
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
    "article: raw JPEG files": "raw JPEG files",
}
"""Titles of the benchmark that the chart shows, and their labels in it."""


def input_rates() -> str:
    """Return the chart of the input pipeline at 224 pixels, for the README and the page of benchmarks."""
    figures = json.loads((FIGURES / "input-rates.json").read_text("utf-8"))
    rows = [(SHOWN[row["title"]], rate(row)) for row in figures["rates"]["224"] if row["title"] in SHOWN]
    return bars("Images per second, 224 pixels, 2 cores", rows, str(figures["machine"][0]))


def rate(row: dict[str, Any]) -> float:
    """Return the images per second of a contender: by its median round."""
    return float(row["images"] / median(row["work_s"]))


def keep(results: Path) -> None:
    """Keep titles, numbers of images and seconds of each round of a benchmark. The rest names files of a machine."""
    content = json.loads(results.read_text("utf-8"))
    rates = {
        size: [{name: row[name] for name in ("title", "images", "work_s")} for row in rows if not row["error"]]
        for size, rows in content["rates"].items()
    }
    kept = {"machine": content["machine"], "rates": rates}
    (FIGURES / "input-rates.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


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
    (Path(__file__).parent / "images" / "input-rates.svg").write_text(input_rates(), "utf-8")
