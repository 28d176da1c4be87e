from typing import Any

import pytest

from pipeline.gate.notices import notices


@pytest.mark.parametrize(
    ("quality", "sentences"),
    [
        ({}, []),
        ({"duplicates": {"images": 0, "groups": 0}, "near_duplicates": None, "misnamed": 0, "classes_new": []}, []),
        ({"duplicates": {"images": 5, "groups": 2}}, ["5 images are equal to another one (2 groups)"]),
        (
            {"near_duplicates": {"images": 2, "groups": 1, "leaks": {"images": 1, "of": 4, "names": [["a", "b"]]}}},
            [
                "2 images are almost the same as another one (1 group)",
                "1 of 4 (25%) validation and test images look like a training image, such as 'b' (as 'a')",
            ],
        ),
        ({"misnamed": 1}, ["1 image is in another format than the file name says (read anyway)"]),
        ({"profiles": {"converted": 3, "ignored": 0}}, []),
        (
            {"profiles": {"converted": 0, "ignored": 2}},
            [
                (
                    "2 images are stored without conversion to sRGB, because the color profile is damaged or does "
                    "not match the image"
                )
            ],
        ),
        ({"classes_new": ["eel"]}, ["1 class new and got the next ids: 'eel'"]),
        (
            {"classes_gone": ["a", "b", "c", "d", "e"]},
            [
                "5 classes without images in this version, with unchanged ids: 'a', 'b', 'c' and 2 more. If these "
                "are completely different images, choose another dataset_name"
            ],
        ),
        (
            {"classes_without_training": ["a", "b", "c", "d"]},
            [
                "4 classes without training images, so no model can learn them (the split never moves an image to "
                "change this): 'a', 'b', 'c' and 1 more"
            ],
        ),
        (
            {"classes_without_validation": ["a", "b"]},
            ["2 classes without validation images, so the scores do not cover them: 'a', 'b'"],
        ),
        (
            {"classes_without_test": ["a"]},
            ["1 class without test images, so the final scores do not cover them: 'a'"],
        ),
    ],
)
def test_facts_without_a_threshold_are_notices(quality: dict[str, Any], sentences: list[str]):
    assert notices({"unit": "image", **quality}) == sentences


@pytest.mark.parametrize(
    ("rows", "values", "share", "is_reported"),
    [
        (150, 149, 0.26, False),  # by chance
        (150, 149, 0.35, True),
        (300, 3, 0.33, True),
        (10_000, 40, 0.26, True),
        (10_000, 40, 0.24, False),  # less than 5 points
        (10_000, 10_000, 0.3, False),
    ],
)
def test_equal_rows_are_blamed_for_a_share_that_chance_does_not_explain(
    rows: int, values: int, share: float, is_reported: bool
):
    facts = {"column": "", "setting": "", "values": values, "rows": rows, "shares": {"validation": [share, 0.2]}}
    found = notices({"unit": "row", "split_values": facts})
    assert [sentence.startswith(f"the validation split has {share:.1%}") for sentence in found] == [True] * is_reported
