"""The dataset card: complete, escaped, without scripts or requests, for two classes and for a thousand."""

import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipeline.gate.statistics import Statistics
from pipeline.report.card import card_html
from tests.browser import chromium
from tests.conftest import jpeg

EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"
NOT_UTF8 = "b\udcff.jpg"
VOID = ("meta", "link", "img")


class Page(HTMLParser):
    """The tags with attributes, the text outside of styles, and the rows of tables. All tags must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            return
        self.text += data
        if "th" in self.open or "td" in self.open:
            self.rows[-1][-1] += data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def split(classes: dict[str, int], shards: int) -> dict[str, Any]:
    made = [{"name": f"s-{n}", "examples": 1, "bytes": 2_000_000 + 500_000 * n, "crc32c": "0"} for n in range(shards)]
    return {"examples": sum(classes.values()), "bytes": 5_000_000, "classes": classes, "shards": made}


def dataset(train: dict[str, int], validation: dict[str, int], **quality: Any) -> dict[str, Any]:
    return {
        "name": "flowers",
        "version": "1f3c",
        "labels": list({**train, **validation}),
        "features": {"image/encoded": "bytes"},
        "splits": {"train": split(train, 2), "validation": split(validation, 1)},
        "rejected": {"count": 0, "file": "rejected.jsonl", "bytes": 0, "crc32c": "0"},
        "source": {"uri": "/data/flowers", "listed": 1050, "skipped": {"hidden": 2}},
        "settings": {"split_seed": 7, "check": "strict"},
        "software": {"pillow": "12.0.0"},
        "quality": {"unit": "image", **quality},
    }


def group(*names: str, kind: str = "equal") -> dict[str, Any]:
    labels = {"labels": []} if kind == "equal" else {}
    return {"kind": kind, "images": [{"path": name, "split": "train", **labels} for name in names]}


def statistics(*images: tuple[int, int, int, float]) -> dict[str, Any]:
    tally = Statistics()
    tally.add(images)
    return tally.to_json()


COMPLETE = dataset(
    {"rose": 900, "daisy": 90, "tulip": 0},
    {"rose": 50, "daisy": 10},
    statistics=statistics((240, 320, 60_000, 100.0), (240, 320, 70_000, 120.0), (500, 500, 90_000, 100.0)),
    duplicates={"images": 5, "groups": 2},
    leaks={"images": 1, "of": 60, "names": [["rose/1.jpg", "rose/copy.jpg"]]},
    near_duplicates={"images": 2, "groups": 1, "leaks": {"images": 1, "of": 60, "names": [["a.jpg", "b.jpg"]]}},
    drift={"against": "0abc", "sizes": 0.02, "brightness": 0.31, "classes": 0.12},
    findings=["it drifted"],
)
REJECTED = [
    {"path": "x.jpg", "reason": "300 x 200 pixels are above the limit of 0.05 megapixels", "advice": "shrink it"},
    {"path": "y.jpg", "reason": "31 x 2000 pixels are above the limit of 0.05 megapixels", "advice": "shrink it"},
    {"path": "z.jpg", "reason": "cannot be decoded: 7 bytes are left", "advice": "replace it"},
]


def test_the_card_says_what_a_test_split_is_for():
    sentence = "the test split judges its model"
    assert sentence not in Page(card_html(COMPLETE, [], [])).text
    tested = {**COMPLETE, "splits": {**COMPLETE["splits"], "test": split({"rose": 20}, 1)}}
    page = Page(card_html(tested, [], []))
    assert sentence in page.text
    assert ["test", "20", "1.9%", "5 MB", "1", "2 MB"] in page.rows


def test_the_card_has_counts_in_tables():
    rows = Page(card_html(COMPLETE, [], REJECTED)).rows
    for row in (
        ["train", "990", "94.3%", "5 MB", "2", "2 MB to 2.5 MB"],
        ["validation", "60", "5.7%", "5 MB", "1", "2 MB"],
        ["class", "train", "validation"],
        ["rose", "900", "50"],
        ["daisy", "90", "10"],
        ["tulip", "0", "0"],
        ["200 to 290", "2"],
        ["290 to 350", "0"],
        ["1.29 to 1.41", "2"],
        ["32 kB to 64 kB", "1"],
        ["96 to 112", "2"],
        ["brightness", "0.31", "much"],
        ["classes", "0.12", "some"],
        ["sizes", "0.02", "little"],
        ["rose/1.jpg", "rose/copy.jpg"],
        ["a.jpg", "b.jpg"],
        ["… x … pixels are above the limit of … megapixels", "2"],
        ["cannot be decoded", "1"],
        ["z.jpg", "cannot be decoded: 7 bytes are left", "replace it"],
        ["split_seed", "7"],
        ["pillow", "12.0.0"],
    ):
        assert row in rows, row
    assert ["below 8", "0"] not in rows  # empty bins at the ends are left out


def test_the_card_has_findings_in_sentences():
    text = Page(card_html(COMPLETE, [])).text
    for phrase in (
        "Version 1f3c, from /data/flowers",
        "it drifted",
        "5 images are equal to another one (2 groups)",
        "1 of 60 (1.67%) validation and test images look like a training image",
        "1,050 images were listed. Skipped, because they are not images of a class: 2 (hidden).",
        (
            "The largest class, 'rose', has 10 times the training images of the smallest, 'daisy'. Labels without "
            "training images: 1."
        ),
        "Of 3 images: height 240 to 500 pixels, 327 on average; width 320 to 500 pixels, 380 on average; 73.3 kB each",
        "Compared with version 0abc",
        "1 of 60 validation and test images. Pairs listed: 1.",
        "No sample images were given.",
        "No image was rejected.",
    ):
        assert phrase in text, phrase


def test_bars_are_proportional_to_the_largest_value():
    widths = [attributes["style"] for attributes in Page(card_html(COMPLETE, [])).attributes("b")]
    assert widths[:4] == ["width:100.0%", "width:100.0%", "width:10.0%", "width:20.0%"]
    assert "width:0.0%" not in widths  # no bar for zero, because a thin line would look like a small value


def test_near_duplicates_are_listed_separately_from_duplicates():
    page = Page(card_html(COMPLETE, [], [], [group("a", "b", "c"), group("d", "e", kind="alike")]))
    assert page.rows.index(["image", "equal to it"]) + 1 == page.rows.index(["a", "b, c"])
    assert page.rows.index(["image", "similar to it"]) + 1 == page.rows.index(["d", "e"])
    assert ["image", "similar to it"] not in Page(card_html(COMPLETE, [], [], [group("a", "b")])).rows


def test_the_card_names_missing_information():
    empty = dataset({"a": 1}, {})
    text = Page(card_html(empty, [])).text
    for phrase in (
        "Fewer than two classes",
        "Sizes and brightness were not counted",
        "There was no earlier version to compare with",
        "No image is known to be on both sides",
    ):
        assert phrase in text, phrase
    first = dataset({"a": 1}, {"a": 1}, drift={"against": None}, statistics=Statistics().to_json())
    assert "There was no earlier version to compare with" in Page(card_html(first, [])).text


@pytest.mark.parametrize(
    ("classes", "tables", "rows"), [(2, [2], 2), (40, [40], 40), (41, [15, 10, 16], 41), (1000, [15, 10, 975], 1000)]
)
def test_the_middle_of_many_classes_is_collapsed(classes: int, tables: list[int], rows: int):
    counts = {f"class {number:04d}": number + 1 for number in range(classes)}
    page = Page(card_html(dataset(counts, counts), []))
    shown = [row for row in page.rows if row[0].startswith("class ")]
    assert sorted(row[0] for row in shown) == sorted(counts)
    assert [row[1] for row in shown[:2]] == [f"{classes:,}", f"{classes - 1:,}"]
    assert len(page.attributes("details")) == (len(tables) > 1)
    if len(tables) > 1:
        assert [int(row[1].replace(",", "")) for row in shown[15:25]] == list(range(10, 0, -1))
        assert f"The other {tables[2]} classes" in page.text


def test_html_in_names_is_escaped():
    evil = dataset(
        {EVIL: 2, NOT_UTF8: 1},
        {EVIL: 1},
        leaks={"images": 1, "of": 1, "names": [[EVIL, NOT_UTF8]]},
        classes_new=[EVIL],
    )
    evil["name"] = evil["source"]["uri"] = evil["settings"][EVIL] = EVIL
    rejected = [{"path": NOT_UTF8, "reason": EVIL, "advice": EVIL}]
    html = card_html(evil, [(EVIL, jpeg(1))], rejected, [group(EVIL, "line\nend")])
    page = Page(html)
    assert not page.attributes("script")
    assert [image["alt"] for image in page.attributes("img")] == [f"sample of {EVIL}"]
    assert [EVIL, "2", "1"] in page.rows
    assert ["b\\udcff.jpg", "1", "0"] in page.rows
    assert [EVIL, r"line\nend"] in page.rows
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_samples_are_embedded_and_broken_ones_are_left_out():
    samples = [("a", jpeg(1, (640, 320))), ("b", jpeg(2)), ("c", b"no image")]
    page = Page(card_html(COMPLETE, samples))
    images = page.attributes("img")
    assert [image["alt"] for image in images] == ["sample of a", "sample of b"]
    assert all((image["src"] or "").startswith("data:image/jpeg;base64,") for image in images)
    assert "1 more samples are not shown" in page.text


def test_the_size_of_the_card_is_limited():
    rejected = [{"path": f"{number}.jpg", "reason": "the file is empty", "advice": ""} for number in range(2000)]
    pairs = [group(f"{number}.jpg", "copy.jpg") for number in range(2000)]
    page = Page(card_html(COMPLETE, [], rejected, pairs))
    assert sum(row[1:2] == ["the file is empty"] for row in page.rows) == 50
    assert sum(row[1:2] == ["copy.jpg"] for row in page.rows) == 50
    assert "The first 50 of 2,000. The file rejected.jsonl lists all." in page.text
    assert "The first 50 of 2,000. The file duplicates.jsonl lists all." in page.text


def test_the_card_loads_no_resources_and_runs_no_script():
    page = Page(card_html(COMPLETE, [("a", jpeg(1))], REJECTED))
    for tag, attributes in page.tags:
        assert tag not in ("script", "iframe", "object", "embed", "base", "form"), tag
        for name in ("src", "href", "srcset", "data", "action"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    policy = next(a["content"] for a in page.attributes("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy


def test_the_card_is_accessible_to_screen_readers():
    page = Page(card_html(COMPLETE, [("a", jpeg(1))], REJECTED, [group("a", "b")]))
    assert [a["lang"] for a in page.attributes("html")] == ["en"]
    assert len(page.attributes("h1")) == 1
    titles = {attributes["id"] for attributes in page.attributes("h2")}
    assert {attributes["aria-labelledby"] for attributes in page.attributes("section")} == titles
    assert len(page.attributes("caption")) == len(page.attributes("table"))
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.attributes("th"))
    assert all(attributes["alt"] for attributes in page.attributes("img"))


def test_equal_datasets_give_equal_cards():
    rejected = [{"path": NOT_UTF8, "reason": "r", "advice": "a"}]
    one, other = (card_html(COMPLETE, [("a", jpeg(1))], rejected) for _ in range(2))
    assert one == other
    assert r"b\udcff.jpg" in one.encode("utf-8").decode("utf-8")


def test_a_browser_shows_the_card_without_an_error(tmp_path: Path):
    path = tmp_path / "card.html"
    path.write_text(card_html(COMPLETE, [(EVIL, jpeg(1))], REJECTED), encoding="utf-8")
    command = [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    assert "cannot be decoded: 7 bytes are left" in done.stdout
