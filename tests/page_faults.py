"""What a person would see at once in a page, and no assertion about its content finds: cut, broken or covered text."""

import re
from collections.abc import Iterator
from typing import Any, Protocol

NOUNS = (
    "classes|cores|dates|days|epochs|examples|files|GPUs|images|models|parts|rows|runs|samples|seeds|servers|shards|slots|"
    "steps|tasks|workers"
)
ODD_WORDS = re.compile(
    rf"(?<![\d.,/:=-])1 (?:{NOUNS}|trainings)\b"  # a plural of one
    r"|\bfrom (\S+(?: [a-z]+)?)(?: \([A-Z]\))? to \1(?![\w.])"  # a range of one value
    r"|(?<![\w.,-])([-+]?\d[\d.,]*%?) to \2(?!\w|%|[.,]\d)"  # the same without "from"
    r"|(?<![\d.,])[-+]?0\.0+(?![\d%])"  # a number that says nothing
    r"|\d{5,} (?:ms|s|examples|steps)\b"  # a large number without commas
    r"|(?<![\w.,:=/-])\d{8,}(?![\w:=/-]|\.\d)"
    r"|\b(?:undefined|NaN|(?<!became )nan|null|Infinity|inf)\b|(?<=.)\bNone\b|\[object"  # not the button "None"
)
"""What no page says to a person."""
_FAULTS = r"""() => {
  const can_scroll = each => ["auto", "scroll"].includes(getComputedStyle(each).overflowX);
  const scrolls = each => each && (can_scroll(each) || scrolls(each.parentElement));
  const is_shown = each => each.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const whole = each => each.closest("[title]") || each.querySelector("[title]");
  // Text for screen readers only.
  const is_hidden_text = each => {
    const style = getComputedStyle(each);
    return style.clipPath !== "none" || style.position === "absolute" && style.width === "1px";
  };
  const is_in_hidden_text = each => each && (is_hidden_text(each) || is_in_hidden_text(each.parentElement));

  const cut = [...document.body.querySelectorAll("*")].filter(each => {
    if (each instanceof SVGElement || !each.clientWidth || !is_shown(each)) return false;
    if (!each.textContent.trim() || each.scrollWidth <= each.clientWidth + 1) return false;
    if (is_hidden_text(each) || scrolls(each)) return false;
    return !(getComputedStyle(each).textOverflow === "ellipsis" && whole(each));
  }).map(each => `cut: ${each.tagName}.${each.className}: ${each.textContent.trim().slice(0, 60)}`);

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    const is_read = node.data.trim() && !["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(parent.tagName);
    const is_level = getComputedStyle(parent).writingMode === "horizontal-tb";
    if (is_read && is_level && is_shown(parent) && !is_in_hidden_text(parent)) texts.push(node);
  }

  // Words of up to 12 letters that do not fit into a line, and dates of tables. Another line may end at a hyphen, and a
  // path may break anywhere.
  const range = document.createRange();
  const SHORT = /(?<![^\s-]|\/\S*)[^\s-]{2,12}(?![^\s-])/g, DATE = /(?<!\S)\d{4}-\d\d-\d\d(?!\S)/g;
  const patterns_of = node => (node.parentElement.closest("td, th") ? [SHORT, DATE] : [SHORT]);
  const words_of = node => patterns_of(node).flatMap(each => [...node.data.matchAll(each)]);
  const broken = texts.flatMap(node => words_of(node).filter(word => {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    return new Set([...range.getClientRects()].map(({top}) => Math.round(top))).size > 1;
  }).map(([word]) => `broken: ${word} in ${node.data.trim().slice(0, 60)}`));

  // What containers that scroll show of a box.
  const visible = (box, each) => {
    if (!each || each === document.body) return box;
    if (getComputedStyle(each).overflowX === "visible") return visible(box, each.parentElement);
    const {left, right, top, bottom} = each.getBoundingClientRect();
    const inside = {
      left: Math.max(left, box.left), right: Math.min(right, box.right),
      top: Math.max(top, box.top), bottom: Math.min(bottom, box.bottom),
    };
    return visible(inside, each.parentElement);
  };
  const boxes = texts.flatMap(node => {
    range.selectNodeContents(node);
    // A spread of a rectangle of the browser has no values.
    return [...range.getClientRects()].map(
      ({left, right, top, bottom}) => ({node, ...visible({left, right, top, bottom}, node.parentElement)}));
  }).filter(({left, right, top, bottom}) => right - left > 2 && bottom - top > 2).sort((one, two) => one.top - two.top);
  // The boxes of two lines may share a few pixels.
  const covered = boxes.flatMap((one, index) => {
    const found = [];
    for (const two of boxes.slice(index + 1, index + 200)) {
      if (two.top > one.bottom) break;
      const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
      const down = Math.min(one.bottom, two.bottom) - two.top;
      if (one.node !== two.node && across > 2 && down > 6) found.push([one, two]);
    }
    return found.map(pair => `covered: ${pair.map(({node}) => node.data.trim().slice(0, 60)).join(" / ")}`);
  });

  const is_scrolled = each => each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight;
  const stops = [...document.querySelectorAll("[role=region][tabindex='0']")];
  const idle = stops.filter(each => is_shown(each) && !is_scrolled(each))
    .map(each => `idle: a tab stop that scrolls nothing: ${each.getAttribute("aria-label")}`);
  return [...cut, ...new Set(broken), ...new Set(covered), ...idle];
}"""


class Evaluates(Protocol):
    """A page of Playwright, or a window of Firefox."""

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or what a function without parameters returns."""


def faults(page: Evaluates) -> list[str]:
    """Return what is cut off, broken or covered in a page, its odd words, and its tab stops without effect."""
    is_too_wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    words = odd_words(page.evaluate("document.body.innerText"))
    return [*["the page scrolls sideways"] * is_too_wide, *page.evaluate(_FAULTS), *words]


def odd_words(text: str) -> Iterator[str]:
    """Yield what no page says to a person, with the words around it."""
    for line in text.splitlines():
        for match in ODD_WORDS.finditer(line):
            yield f"odd: {line[max(0, match.start() - 30) : match.end() + 30]}"
