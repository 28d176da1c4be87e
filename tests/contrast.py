"""Contrast of colors by WCAG 2.2, and the colors of the text in plots as a browser shows them."""

from collections.abc import Sequence
from itertools import product
from typing import Any

MIN_CONTRAST = 4.5
"""Minimum contrast of normal text, for level AA."""


def contrast(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the contrast ratio of two colors, from 1 to 21; each is red, green and blue, from 0 to 255."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: Sequence[int]) -> float:
    shares = [each / 255 for each in color]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def least_contrast(frame: Any) -> float:
    """Return the least contrast of the text in all plots that a page or a frame shows."""
    found = frame.evaluate(_COLORS)
    assert len(found["words"]) > 0
    return min(contrast(one, other) for one, other in product(found["words"], found["grounds"]))


_COLORS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const painted = colors => {
    canvas.clearRect(0, 0, 1, 1);
    for (const color of colors) {
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const above = element => element ? [...above(element.parentElement), getComputedStyle(element).backgroundColor] : [];
  const of_canvases = [...document.querySelectorAll(".chart canvas[role]")].map(each => getComputedStyle(each).color);
  const of_plots = (globalThis.Bokeh?.documents ?? []).flatMap(each => each.roots()).flatMap(plot => [
    plot.title.text_color,
    ...plot.above.filter(each => each.type === "Legend").map(each => each.label_text_color),
    ...[...plot.left, ...plot.below].flatMap(each => [each.major_label_text_color, each.axis_label_text_color]),
  ]);
  return {
    words: [...new Set([...of_canvases, ...of_plots].map(each => each.value ?? each))].map(each => painted([each])),
    grounds: [...document.querySelectorAll(".plots")].map(each => painted(above(each))),
  };
}"""
