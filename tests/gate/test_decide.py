import io
import logging
import os
import sys
from collections.abc import Callable

import pytest

from pipeline.errors import BadInput, GateError
from pipeline.gate.decide import act_on, ask_terminal
from pipeline.gate.findings import Finding


def test_a_finding_with_continue_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        act_on([Finding("on_drift", "brighter by 100%", "continue")], None)
    assert caplog.messages == ["brighter by 100%"]


def test_failing_findings_raise_one_error_that_names_their_settings():
    found = [
        Finding("on_leak", "one.", "fail"),
        Finding("on_drift", "two.", "continue"),
        Finding("on_rejected", "three.", "fail"),
    ]
    with pytest.raises(GateError) as caught:
        act_on(found, refuse_question)
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


ASKING = [
    Finding("on_leak", "one", "ask"),
    Finding("on_drift", "two", "continue"),
    Finding("on_rejected", "three", "ask"),
]


def test_the_run_continues_if_each_answer_is_yes():
    sentences, ask = answers(True, True)
    act_on(ASKING, ask)
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
        act_on(ASKING, ask)
    assert len(sentences) == put


def test_the_run_stops_if_there_is_no_terminal():
    with pytest.raises(GateError, match=r"one; three. To continue, set on_leak=continue .*, or run this in a terminal"):
        act_on(ASKING, None)
    act_on(ASKING[1:2], None)


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
