import pytest

from pipeline.sources.split_names import split_of_word


@pytest.mark.parametrize(
    ("words", "split"),
    [
        ("train training Train TRAIN Split-train split=train", "train"),
        ("val valid validation dev eval evaluation Dev Split-eval", "validation"),
        ("test testing Test Split-test", "test"),
        ("holdout split trains train2 split-split-train split-", None),
    ],
)
def test_each_word_names_its_split(words: str, split: str | None):
    assert {split_of_word(word) for word in words.split()} == {split}


def test_blanks_around_a_word_do_not_matter():
    assert split_of_word(" val\t") == "validation"
    assert split_of_word("") is split_of_word(" ") is None
