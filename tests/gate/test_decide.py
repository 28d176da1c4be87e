import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.config import Settings, settings_from
from pipeline.errors import BadInput, GateError
from pipeline.gate.decide import Finding, ask_terminal, decide, findings, notices

CONTRADICTIONS = {
    "images": 4,
    "groups": 2,
    "of": 100,
    "pairs": [{"paths": ["a/1.jpg", "b/9.jpg"], "labels": [["a"], ["b", "c"]]}],
}
LEAKS = {"images": 3, "of": 100, "names": [["a/1.jpg", f"b/{n}.jpg"] for n in range(20)]}


def settings(**values: Any) -> Settings:
    return settings_from({"workspace": "workspace", **values})


def of_images(quality: dict[str, Any]) -> dict[str, Any]:
    return {"unit": "image", **quality}


@pytest.mark.parametrize(
    ("quality", "limits", "sentence"),
    [
        (
            {"listed": 600, "rejected": 312},
            {},
            "312 of 600 (52%) images were rejected, more than max_rejected_fraction=0.5: "
            "rejected.jsonl says why and what could be done with each",
        ),
        (
            {"leaks": LEAKS},
            {},
            "3 of 100 (3%) validation and test images are in training too, more than max_leaked_fraction=0.01, such as "
            "'b/0.jpg' (as 'a/1.jpg'), 'b/1.jpg' (as 'a/1.jpg'), 'b/2.jpg' (as 'a/1.jpg'): "
            "remove them from one side, or the score flatters the model",
        ),
        (
            {"contradictions": CONTRADICTIONS},
            {},
            "4 of 100 (4%) images are equal to one with different labels, more than max_contradictory_fraction=0, such "
            "as 'a/1.jpg' ('a') and 'b/9.jpg' ('b'|'c'): keep one label, or remove the images",
        ),
        (
            {"classes": {"cat": 4, "dog": 1000, "eel": 300}},
            {},
            "class 'dog' has 1000 training images, 250 times the 4 of 'cat', more than max_imbalance=100: "
            "add images to the small classes, or leave them out",
        ),
        (
            {"classes": {"cat": 0, "dog": 5}},
            {},
            "class 'dog' has 5 training images, against the 0 of 'cat', more than max_imbalance=100: "
            "add images to the small classes, or leave them out",
        ),
        (
            {"drift": {"against": "abc", "sizes": 0.3, "aspect": 0.01, "classes": 1.254}},
            {},
            "the images differ from those of version abc in classes by 1.25, sizes by 0.30, more than max_drift=0.25: "
            "look at the dataset cards of both, and go on if the change is meant",
        ),
        ({"listed": 10, "rejected": 1}, {"max_rejected_fraction": 0.0}, "1 of 10 (10%) images were rejected, more"),
        ({"leaks": {"images": 1, "of": 3, "names": []}}, {}, "1 of 3 (33.3%) validation and test images are in train"),
    ],
)
def test_a_value_above_its_threshold_becomes_one_sentence(
    quality: dict[str, Any], limits: dict[str, Any], sentence: str
):
    (found,) = findings(of_images(quality), settings(**limits))
    assert found.sentence.startswith(sentence)
    assert "\n" not in found.sentence


@pytest.mark.parametrize(
    "quality",
    [
        {},
        {"listed": 600, "rejected": 300},
        {"listed": 0, "rejected": 0},
        {"contradictions": {"images": 0, "groups": 0, "of": 100, "pairs": []}},
        {"rejected": 7},
        {"leaks": {"images": 1, "of": 100, "names": [["a", "b"]]}},
        {"leaks": {"images": 0, "of": 0, "names": []}},
        {"leaks": None, "drift": None, "near_duplicates": None, "classes": {}},
        {"classes": {"cat": 1, "dog": 100}},
        {"classes": {"cat": 0, "dog": 5}, "classes_gone": ["cat"]},
        {"drift": {"against": None}},
        {"drift": {"against": "abc", "sizes": 0.25, "aspect": 0.0}},
    ],
)
def test_values_within_their_thresholds_or_unknown_are_ignored(quality: dict[str, Any]):
    assert findings(of_images(quality), settings()) == []


def test_each_finding_carries_the_action_of_its_own_setting():
    quality = {
        "listed": 1,
        "rejected": 1,
        "leaks": LEAKS,
        "contradictions": CONTRADICTIONS,
        "classes": {"a": 1, "b": 1000},
        "drift": {"against": "v", "sizes": 9.0},
    }
    kinds = ("rejected", "leak", "contradiction", "imbalance", "drift")
    for kind in kinds:
        others = {f"on_{name}": "continue" for name in kinds}
        found = findings(of_images(quality), settings(**{**others, f"on_{kind}": "ask"}))
        assert [finding.kind for finding in found if finding.action == "ask"] == [kind]


def test_image_names_are_escaped():
    leaks = {"images": 1, "of": 1, "names": [["a\n.jpg", "b\udcff.jpg"]]}
    (found,) = findings(of_images({"leaks": leaks}), settings())
    assert r"such as 'b\udcff.jpg' (as 'a\n.jpg')" in found.sentence
    found.sentence.encode()  # Otherwise, a log could not hold it.


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
    ],
)
def test_facts_without_a_threshold_are_notices(quality: dict[str, Any], sentences: list[str]):
    assert notices(of_images(quality)) == sentences


def test_a_finding_with_continue_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        decide([Finding("drift", "brighter by 100%", "continue")], None)
    assert caplog.messages == ["brighter by 100%"]


def test_failing_findings_raise_one_error_that_names_their_settings():
    found = [
        Finding("leak", "one.", "fail"),
        Finding("drift", "two.", "continue"),
        Finding("rejected", "three.", "fail"),
    ]
    with pytest.raises(GateError) as caught:
        decide(found, refuse_question)
    assert str(caught.value) == "one.; three.. To continue, set on_leak=continue on_rejected=continue"
    assert isinstance(caught.value, BadInput)  # A retry does not help.


def refuse_question(sentence: str) -> bool:
    raise AssertionError(sentence)


def answers(*given: bool) -> tuple[list[str], Callable[[str], bool]]:
    """Return the list of questions so far, and the function that answers them."""
    sentences: list[str] = []

    def ask(sentence: str) -> bool:
        sentences.append(sentence)
        return given[len(sentences) - 1]

    return sentences, ask


ASKING = [Finding("leak", "one", "ask"), Finding("drift", "two", "continue"), Finding("rejected", "three", "ask")]


def test_the_run_continues_if_each_answer_is_yes():
    sentences, ask = answers(True, True)
    decide(ASKING, ask)
    assert sentences == ["one", "three"]


@pytest.mark.parametrize(
    ("given", "put", "sentence"),
    [
        ((False,), 1, "a person answered no: one. To continue, set on_leak=continue"),
        ((True, False), 2, "a person answered no: three. To continue, set on_rejected=continue"),
    ],
)
def test_the_answer_no_stops_the_run_and_further_questions(given: tuple[bool, ...], put: int, sentence: str):
    sentences, ask = answers(*given)
    with pytest.raises(GateError, match=sentence):
        decide(ASKING, ask)
    assert len(sentences) == put


def test_the_run_stops_if_there_is_no_terminal():
    with pytest.raises(GateError, match=r"one; three. To continue, set on_leak=continue .*, or run this in a terminal"):
        decide(ASKING, None)
    decide(ASKING[1:2], None)


@pytest.mark.parametrize(
    ("answer", "goes_on"), [("y\n", True), (" YES \n", True), ("\n", False), ("n\n", False), ("", False)]
)
def test_the_question_is_written_to_stderr(answer: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch):
    typed, shown = Terminal(answer), Terminal()
    monkeypatch.setattr(sys, "stdin", typed)  # a test has no terminal
    monkeypatch.setattr(sys, "stderr", shown)
    ask = ask_terminal()
    assert ask is not None
    assert ask("3 of 4 leak") is goes_on
    assert shown.getvalue() == "3 of 4 leak\nContinue? [y/N] "


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", ["stdin", "stderr"])
def test_without_a_terminal_there_is_no_question(stream: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("stdin", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, stream, nobody)
        assert ask_terminal() is None
