"""Components that the pages share."""

import base64
import io
from typing import Any

import pytest
from PIL import Image

from pipeline.report.components import fact_tables, make_visible, thumbnail
from tests.conftest import jpeg


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Rosé/\u00df 花 🌹.jpg", "Rosé/\u00df 花 🌹.jpg"),
        ("b\udcff", r"b\udcff"),
        ("a\nb\x00\x1b[31m", r"a\nb\x00\x1b[31m"),
        ("gpj.\u202etac", r"gpj.\u202etac"),
        (r"a\b", r"a\b"),
        (7, 7),
    ],
)
def test_invisible_characters_are_escaped(name: Any, shown: Any):
    assert make_visible(name) == shown


@pytest.mark.parametrize(("of_image", "of_picture"), [((640, 320), (160, 80)), ((24, 16), (24, 16))])
def test_thumbnails_have_a_limited_size(of_image: tuple[int, int], of_picture: tuple[int, int]):
    uri = thumbnail(jpeg(1, of_image), 160)
    assert uri is not None
    assert Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))).size == of_picture


def test_an_invalid_image_has_no_thumbnail():
    assert thumbnail(b"no image", 160) is None
    assert thumbnail(jpeg(1)[:200], 160) is None


def test_facts_are_formatted_for_reading():
    [(title, table)] = fact_tables({"Settings": {"rate": 0.001, "size": 50.0, "name": "a", "more": None}, "Host": {}})
    assert title == "Settings"
    assert table.rows == [("rate", "0.001"), ("size", "50"), ("name", "a"), ("more", "null")]
