"""Charts of the documentation, drawn from the JSON that the benchmarks write (`--json FILE`)."""

import json
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

FIGURES = Path(__file__).parent / "figures"
WIDTH, LABELS, NUMBERS, ROW, TOP = 760, 210, 130, 26, 44
"""Pixels: the chart, the labels on its left, the numbers on its right, a row, and the space above the rows."""
OURS, LIMIT, OTHERS = "#0b6e4f", "#b08900", "#8aa39b"
BACKGROUND, INK = "#f7f9f8", "#16302a"


def input_rates() -> str:
    """Return the chart of the input pipeline at 224 pixels, for the README and the page of benchmarks."""
    figures = json.loads((FIGURES / "input-rates.json").read_text("utf-8"))
    rows = [(str(row["title"]), rate(row)) for row in figures["rates"]["224"]]
    return bars("Images per second, 224 pixels, 2 cores", rows, str(figures["machine"][0]))


def rate(row: dict[str, Any]) -> float:
    """Return the images per second of a contender: as noted, or from its rounds."""
    if "images_per_s" in row:
        return float(row["images_per_s"])
    return float(row["images"] / median(row["work_s"]))


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
    (Path(__file__).parent / "images" / "input-rates.svg").write_text(input_rates(), "utf-8")
