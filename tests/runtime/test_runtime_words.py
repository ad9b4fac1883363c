"""The splitter against the one of the standard library, whose results and texts it promises."""

import shlex
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate_runtime.words import split_words

AWKWARD = st.text(alphabet=" \t\n\r'\"\\ab#;$é\0", max_size=24)


def outcome(split: object, text: str) -> object:
    assert callable(split)
    try:
        return split(text)
    except ValueError as error:
        return str(error)


@given(AWKWARD)
@settings(max_examples=2000, deadline=None)
def test_a_command_line_splits_as_the_standard_library_splits_it(text: str) -> None:
    assert outcome(split_words, text) == outcome(shlex.split, text)


@given(st.lists(st.text(max_size=12), max_size=6))
@settings(deadline=None)
def test_words_that_were_quoted_come_back_as_they_were(words: list[str]) -> None:
    assert split_words(shlex.join(words)) == words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo 'a", "No closing quotation"),
        ('echo "a', "No closing quotation"),
        ('echo "a\\"', "No closing quotation"),
        ("echo \\", "No escaped character"),
        ('echo "a\\', "No escaped character"),
    ],
)
def test_an_open_quote_or_escape_is_told_in_the_known_words(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_words(text)


@pytest.mark.parametrize(
    "text",
    [
        "sh -c '" + "x" * 2_000_000 + "'",
        'sh -c "' + '\\"' * 1_000_000 + '"',
        "a" * 2_000_000,
        " " * 2_000_000,
        '"' + "\\\\" * 1_000_000,
    ],
    ids=["single quotes", "escapes", "plain", "white space", "never closed"],
)
def test_two_megabytes_split_without_quadratic_work(text: str) -> None:
    started = time.process_time()
    outcome(split_words, text)
    assert time.process_time() - started < 5  # a tenth of a second in fact; shlex takes minutes
