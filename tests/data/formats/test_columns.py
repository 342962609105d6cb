"""Whole columns are encoded and decoded as a codec does row by row."""

import numpy as np
import pytest
from gymnasium import spaces

from dreamsim.core.spaces import Codec
from dreamsim.data.formats import columns

SPACES = [
    spaces.Tuple([spaces.Box(-9, 9, (), np.float32), *(spaces.Discrete(k) for k in range(2, 13))]),
    spaces.Dict({"a": spaces.Dict(x=spaces.Box(0, 1, (2,))), "a-b": spaces.Discrete(3), "t": spaces.Text(5)}),
    spaces.Box(0, 255, (9, 10, 3), np.uint8),
    spaces.Box(0, 255, (7, 7, 3), np.uint8),
    spaces.MultiDiscrete([3, 4], start=[1, -2]),
    spaces.MultiBinary(4),
]


def stacked(space, rows):
    """Return rows of values as a tree of columns."""
    if isinstance(space, spaces.Dict):
        return {name: stacked(part, [row[name] for row in rows]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part, [row[k] for row in rows]) for k, part in enumerate(space.spaces))
    return rows if isinstance(space, spaces.Text) else np.stack([np.asarray(row) for row in rows])


def same(first, second):
    if isinstance(first, dict):
        return all(same(first[name], second[name]) for name in first)
    if isinstance(first, tuple):
        return all(same(a, b) for a, b in zip(first, second, strict=True))
    return np.array_equal(first, second) and np.asarray(first).dtype == np.asarray(second).dtype


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_columns_are_what_a_codec_makes_of_each_row(space):
    space.seed(3)
    rows = [space.sample() for _ in range(6)]
    codec, tree = Codec(space, spaces.Discrete(2)), stacked(space, rows)
    names = list(codec.observation_space.spaces)
    found = columns.observations(space, names, tree)
    for number, row in enumerate(rows):
        for name, value in codec.encode_obs(row).items():
            assert np.array_equal(found[name][number], value), name
    assert same(columns.decode_observations(space, names, found), tree)
