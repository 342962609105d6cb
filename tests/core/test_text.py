"""Text crosses the border as bytes and comes back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dreamsim.core import text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_any_text_comes_back(texts):
    assert text.decode(text.encode(texts)) == texts


def test_padding_is_a_byte_that_utf8_does_not_have():
    assert text.encode(["ab", ""], 3).tolist() == [[97, 98, 255], [255, 255, 255]]
    assert all(text.PAD not in char.encode() for char in ("\x7f", "é", "漢", "😀"))


def test_the_length_counts_bytes_and_nothing_is_cut():
    assert text.encode(["é"]).shape == (1, 2)
    with pytest.raises(ValueError, match="2 bytes does not fit into the declared 1"):
        text.encode(["é"], 1)


def test_a_lone_surrogate_becomes_a_question_mark():
    assert text.decode(text.encode(["a\ud800b"])) == ["a?b"]


def test_half_a_letter_is_shown_not_raised():
    assert text.decode(torch.tensor([[0xC3, 255]], dtype=torch.uint8)) == ["\ufffd"]
