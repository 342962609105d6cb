"""A stream draws its own numbers, whatever happens outside it."""

import pytest
import torch

from dreamsim.core.random import Stream, derive_seed


def draw(stream: Stream) -> torch.Tensor:
    with stream:
        return torch.randn(3)


def test_two_interleaved_streams_with_equal_seeds_draw_equal_numbers():
    one, two = Stream(7), Stream(7)
    ones, twos = [], []
    for _ in range(3):
        ones.append(draw(one))
        torch.randn(5)
        twos.append(draw(two))
    assert torch.equal(torch.stack(ones), torch.stack(twos))
    assert not torch.equal(ones[0], ones[1])


def test_the_global_generator_is_left_alone_even_by_an_error():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), Stream(1):
        torch.rand(2)
        raise ZeroDivisionError
    assert torch.equal(before, torch.get_rng_state())


def test_a_saved_position_continues():
    stream = Stream(3)
    draw(stream)
    position = stream.state_dict()
    expected = draw(stream)
    other = Stream(99)
    other.load_state_dict(position)
    assert torch.equal(draw(other), expected)


def test_streams_nest_but_one_is_not_entered_twice():
    outer, inner = Stream(0), Stream(1)
    alone = draw(Stream(0))
    with outer:
        draw(inner)
        assert torch.equal(torch.randn(3), alone)
        with pytest.raises(RuntimeError, match="already in use"):
            outer.__enter__()


def test_seeds_are_derived_equally_everywhere():
    assert derive_seed(0, "collect", 3) == derive_seed(0, "collect", 3)
    assert derive_seed(0, 12) != derive_seed(0, 1, 2) != derive_seed(0, 2, 1)
    assert len({derive_seed(0, slot, number) for slot in range(30) for number in range(30)}) == 900
    assert derive_seed("known") == 1929320305  # a recorded value: seeds of old runs stay valid
