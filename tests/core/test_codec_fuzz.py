"""Whatever a space is built of: nothing is lost on the way in and out, or it is refused by name."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dreamsim.core.spaces import Codec, space_from_json, space_to_json

few = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
KINDS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]


@st.composite
def boxes(draw, reach=1000, kinds=KINDS, endless=True):
    """Boxes of numbers that float32 holds; floats may have no bounds."""
    dtype, shape = np.dtype(draw(st.sampled_from(kinds))), draw(shapes)
    count = int(np.prod(shape))
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, dtype)
    least, most = (-reach, reach) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    ends = st.lists(st.integers(max(-reach, int(least)), min(reach, int(most))), min_size=count, max_size=count)
    one, two = (np.array(draw(ends), np.int64).reshape(shape) for _ in range(2))
    one, two = one.astype(dtype), two.astype(dtype)
    low, high = np.minimum(one, two), np.maximum(one, two)
    if endless and dtype.kind == "f" and draw(st.booleans()):
        high = np.full(shape, np.inf, dtype)
    return spaces.Box(low, high, shape, dtype)


@st.composite
def many(draw):
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    count = int(np.prod(shape))
    sizes = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    starts = draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    kind = draw(st.sampled_from([np.int64, np.int32, np.int8]))
    return spaces.MultiDiscrete(np.array(sizes, kind).reshape(shape), kind, start=np.array(starts, kind).reshape(shape))


choices = st.one_of(
    st.builds(
        lambda n, start, kind: spaces.Discrete(n, start=start, dtype=kind),
        st.integers(1, 6),
        st.integers(-5, 5),
        st.sampled_from([np.int64, np.int32, np.int8]),
    ),
    many(),
    st.builds(spaces.MultiBinary, st.one_of(st.integers(1, 4), st.just([2, 3]))),
)
texts = st.builds(
    lambda most, least, charset: spaces.Text(most, min_length=min(least, most), charset=charset),
    st.integers(1, 5),
    st.integers(0, 5),
    # A text of NULs alone comes back empty.
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=8),
)
names = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=3)


def nested(leaves):
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.lists(parts, min_size=1, max_size=3).map(spaces.Tuple),
            # Pairs keep their order; a plain dict would be sorted.
            st.dictionaries(names, parts, min_size=1, max_size=3).map(lambda made: spaces.Dict(list(made.items()))),
        ),
        max_leaves=5,
    )


def assert_same(one, two):
    """The same structure, types and values; floats as near as float32 is."""
    if isinstance(one, dict):
        assert list(one) == list(two)
        for name in one:
            assert_same(one[name], two[name])
    elif isinstance(one, tuple):
        assert isinstance(two, tuple) and len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert_same(a, b)
    elif isinstance(one, str):
        assert one == two
    else:
        assert np.asarray(one).dtype == np.asarray(two).dtype and np.shape(one) == np.shape(two)
        np.testing.assert_allclose(np.asarray(two, np.float64), np.asarray(one, np.float64), 2e-6, 1e-3)


@few
@given(nested(st.one_of(boxes(), choices, texts)), st.integers(0, 99))
def test_an_observation_of_any_space_comes_back(space, seed):
    codec = Codec(space, spaces.Discrete(2))
    space.seed(seed)
    for _ in range(3):
        raw = space.sample()
        obs = codec.encode_obs(raw)
        assert codec.observation_space.contains(obs)
        back = codec.decode_obs(obs)
        assert_same(raw, back)
        assert space.contains(back)
    again = Codec(codec.observation_space, spaces.Discrete(2))  # what is encoded is left as it is
    assert again.observation_space == codec.observation_space
    assert_same(dict(sorted(again.encode_obs(obs).items())), dict(sorted(obs.items())))


@few
@given(nested(st.one_of(boxes(endless=False), choices)), st.integers(0, 99))
def test_an_action_of_any_space_comes_back_and_whatever_is_asked_lies_inside(space, seed):
    codec = Codec(spaces.Discrete(2), space)
    space.seed(seed)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        raw = space.sample()
        unit = codec.encode_action(raw)
        assert unit.shape == (codec.action_size,) and unit.dtype == np.float32 and np.abs(unit).max() <= 1 + 1e-5
        assert_same(raw, codec.decode_action(unit))
        wild = (rng.normal(size=codec.action_size) * 10.0 ** rng.integers(-3, 9)).astype(np.float32)
        done = codec.decode_action(wild)
        assert space.contains(done)
        assert_same(codec.unflatten_action(codec.settle(wild)), done)


@few
@given(nested(st.one_of(boxes(2**62, KINDS[:9]), boxes(), choices, texts)))
def test_any_space_survives_json_with_its_order_and_types(space):
    back = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert back == space and space_to_json(back) == space_to_json(space)
    back.seed(1), space.seed(1)
    assert_same(space.sample(), back.sample())


@few
@given(boxes(2**62, ["i4", "u4", "i8", "u8", "f8"]), st.floats(allow_nan=False, width=32))
def test_any_number_that_a_model_dreams_is_decoded_into_the_box(space, number):
    codec = Codec(space, spaces.Discrete(2))
    (name,) = codec.observation_space
    dreamt = np.full(codec.observation_space[name].shape, number, np.float32)
    assert space.contains(codec.decode_obs({name: dreamt}))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda parts: st.one_of(st.lists(parts, max_size=3), st.dictionaries(st.text(max_size=5), parts, max_size=3)),
    max_leaves=5,
)
DESCRIBED = [
    space_to_json(space)
    for space in (
        spaces.Box(0, 1, (2,)), spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3),
        spaces.Text(3), spaces.Dict({"a": spaces.Discrete(2)}), spaces.Tuple([spaces.Discrete(2)]),
    )
]  # fmt: skip


@settings(few, max_examples=150)
@given(st.sampled_from(DESCRIBED), st.data(), json_values)
def test_a_description_that_was_changed_is_a_space_or_is_refused(described, data, value):
    key = data.draw(st.sampled_from(sorted(described)))
    for changed in ({**described, key: value}, {k: v for k, v in described.items() if k != key}, value):
        try:
            assert isinstance(space_from_json(changed), spaces.Space)
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize("size", [10**10, 2**63, -1])
def test_a_size_that_no_memory_holds_is_refused_before_it_is_taken(size):
    for described in (
        {"type": "Box", "low": 0, "high": 1, "shape": [size], "dtype": "float32"},
        {"type": "Discrete", "n": size, "start": 0},
        {"type": "MultiBinary", "n": [size]},
        {"type": "MultiDiscrete", "nvec": [size, 2], "start": [0, 0]},
        {"type": "Bytes", "length": size},
    ):
        with pytest.raises(ValueError, match=r"expected 0 to|no description|positive"):
            space_from_json(described)
