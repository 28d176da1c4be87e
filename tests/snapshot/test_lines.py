"""The lines of a snapshot, which are parsed in several ways."""

import json
import random

import pytest

from pipeline.snapshot.raw_example import (
    RawExample,
    content_of,
    from_line,
    from_lines,
    group_of_line,
    only_label,
    record_of_line,
    to_line,
)

ODD = ("plain", 'a "quoted" one', "back\\slash", 'both\\"', '",["x"],', "two\nlines", "é", "\udc80", "")


def row(key: str, label: str | None, content: bytes = b"", rejection: tuple[str, ...] = ()) -> RawExample:
    labels = [] if label is None else [label]
    return RawExample(key, labels, "", 3, 4, "", [], 5, "", rejection, content=content)


def line_of(image: RawExample) -> bytes:
    return to_line(content_of(image), image)


ROWS = [
    row(key, label, content)
    for key in ODD
    for label in (None, *ODD)
    for content in (b"", b"\n", b"\n\n[]\x00\xff", bytes(range(256)))
]


def test_rows_are_read_as_they_were_written():
    lines = [line_of(each) for each in ROWS]
    assert [from_line(line) for line in lines] == ROWS
    assert [each for several in from_lines(lines) for each in several] == ROWS
    assert [record_of_line(line) for line in lines] == [each.content for each in ROWS]


def test_the_label_is_read_without_parsing_the_line():
    for each in ROWS:
        found = only_label(line_of(each))
        assert ([json.loads(found)] if found else []) == each.labels


def test_the_group_is_read_without_parsing_the_line():
    for each in ROWS:
        for group in ODD:
            assert json.loads(group_of_line(line_of(each._replace(group=group)))) == group


def test_a_rejected_row_has_its_reason():
    rejected = row("rejected 1", "", rejection=("reason", "advice", "row 7"))
    assert tuple(from_line(line_of(rejected)).rejection) == ("reason", "advice", "row 7")


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_may_follow_a_line(seed: int):
    generator = random.Random(seed)
    rows = [row(str(number), "x", generator.randbytes(generator.randrange(50))) for number in range(200)]
    assert [each for several in from_lines(map(line_of, rows)) for each in several] == rows


def test_an_image_that_is_a_part_of_a_file_has_its_place():
    placed = row("a.jpg", "x")._replace(extent=("dir/\udc80.tar", 512, False))
    assert from_line(line_of(placed)).extent == ["dir/\udc80.tar", 512, False]
    assert json.loads(group_of_line(line_of(placed))) == ""
    assert content_of(placed) == content_of(row("a.jpg", "x"))
