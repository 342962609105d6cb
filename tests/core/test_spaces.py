"""A codec loses nothing of any common space, and every action it gives lies inside the space."""

import json
import pickle

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamsim.core.spaces import Codec, Scale, is_image, space_from_json, space_to_json

NUMBER = spaces.Box(-1, 1, (1,), np.float32)

SPACES = [
    spaces.Box(-2, 2, (1,), np.float32),
    spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 5.0]), dtype=np.float64),
    spaces.Box(-3, 7, (2, 2), np.int64),
    spaces.Box(-1, 1, (), np.float32),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3], start=[0, -1]),
    spaces.MultiBinary(3),
    spaces.Dict({"arm": spaces.Box(-1, 1, (2,), np.float32), "grip": spaces.Discrete(2)}),
    spaces.Tuple([spaces.Discrete(3), spaces.Dict({"x": spaces.Box(0, 1, (1,), np.float32)})]),
]


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return np.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_and_observations_survive_a_round_trip(space):
    codec = Codec(space, space)
    space.seed(0)
    for _ in range(20):
        raw = space.sample()
        vector = codec.encode_action(raw)
        assert vector.shape == (codec.action_size,) and np.abs(vector).max() <= 1
        assert same(codec.decode_action(vector), raw)
        np.testing.assert_allclose(codec.settle(vector), codec.flatten_action(raw), atol=1e-6)
        obs = codec.encode_obs(raw)
        assert codec.observation_space.contains(obs)
        assert same(codec.decode_obs(obs), raw)


@pytest.mark.parametrize("space", SPACES, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_a_policy_gives_lies_inside_the_space(space, data):
    codec = Codec(NUMBER, space)
    numbers = st.floats(-1e6, 1e6, width=32)
    unit = np.array(data.draw(st.lists(numbers, min_size=codec.action_size, max_size=codec.action_size)), np.float32)
    assert space.contains(codec.decode_action(unit))
    # What is recorded is what was done: the recorded vector gives the same action again.
    assert same(codec.unflatten_action(codec.settle(unit)), codec.decode_action(unit))


@pytest.mark.parametrize("space", [*SPACES, spaces.Text(5, charset="abc")], ids=str)
def test_a_space_survives_json(space):
    assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space


def test_a_codec_travels_between_processes_with_its_scale():
    codec = Codec(SPACES[-1], SPACES[-2])
    codec.scale = Scale(np.ones(4), np.full(4, 2))
    copy = pickle.loads(pickle.dumps(codec))
    assert copy.observation_space == codec.observation_space
    assert copy.scale.raw(np.ones(4)).tolist() == [3] * 4


def test_discrete_with_a_negative_start_covers_all_its_values():
    codec = Codec(NUMBER, spaces.Discrete(5, start=-2))
    assert codec.action_space == spaces.Discrete(5)
    assert [int(codec.decode_action(row)) for row in np.eye(5)] == [-2, -1, 0, 1, 2]
    assert codec.settle(np.array([[0.1, 0.3, 0.2, 0, 0]])).tolist() == [[0, 1, 0, 0, 0]]


def test_asymmetric_bounds_are_met_at_both_ends():
    codec = Codec(NUMBER, spaces.Box(np.array([-1, 0]), np.array([1, 5]), dtype=np.float32))
    assert codec.decode_action(np.array([-1, -1])).tolist() == [-1, 0]
    assert codec.decode_action(np.array([1, 1])).tolist() == [1, 5]
    assert codec.decode_action(np.array([9, -9])).tolist() == [1, 0]
    assert codec.settle(np.array([0, 0.5])).tolist() == [0, 3.75]


@pytest.mark.parametrize(
    "low, high, dtype",
    [
        (-1, np.inf, np.float32),
        (0, np.finfo(np.float32).max, np.float32),
        (-np.finfo(np.float64).max, np.finfo(np.float64).max, np.float64),
        (-np.inf, np.inf, np.int64),
        (0, 2**31 - 1, np.int32),
    ],
)
def test_an_action_without_bounds_is_refused_with_the_cure(low, high, dtype):
    with pytest.raises(ValueError, match=r"'action' has no finite bounds.*RescaleAction"):
        Codec(NUMBER, spaces.Box(low, high, (1,), dtype))
    with pytest.raises(ValueError, match="'arm/0' has no finite bounds"):
        Codec(NUMBER, spaces.Dict({"arm": spaces.Tuple([spaces.Box(low, high, (1,), dtype)])}))


def test_a_vector_in_the_unit_box_passes_bit_for_bit():
    codec = Codec(NUMBER, spaces.Box(-1, 1, (4,), np.float32))
    unit = np.random.default_rng(0).uniform(-1, 1, (50, 4)).astype(np.float32)
    assert np.array_equal(codec.settle(unit), unit)
    assert np.array_equal(codec.scale.unit(codec.settle(unit)), unit)


def test_a_component_that_cannot_vary_reads_zero():
    scale = Scale(np.array([2.0, 0.0]), np.array([0.0, 1.0]))
    assert scale.unit(np.array([2.0, 0.5])).tolist() == [0.0, 0.5]
    assert scale.raw(np.array([1.0, 0.5])).tolist() == [2.0, 0.5]


def test_both_layouts_of_an_image_read_alike():
    picture = np.random.default_rng(0).integers(0, 256, (16, 12, 3), np.uint8)
    last = Codec(spaces.Box(0, 255, (16, 12, 3), np.uint8), NUMBER)
    front = Codec(spaces.Box(0, 255, (3, 16, 12), np.uint8), NUMBER)
    a, b = last.encode_obs(picture)["image"], front.encode_obs(picture.transpose(2, 0, 1))["image"]
    assert a.dtype == np.uint8 and a.shape == (3, 16, 12) and np.array_equal(a, b)
    assert last.observation_space == front.observation_space
    assert np.array_equal(last.decode_obs({"image": a}), picture)


@pytest.mark.parametrize("shape", [(16, 12, 3), (3, 16, 12)])
@pytest.mark.parametrize("high", [1, 255])
def test_a_colour_image_as_float_is_refused_with_the_cure(shape, high):
    with pytest.raises(ValueError, match="uint8"):
        Codec(spaces.Box(0, high, shape, np.float32), NUMBER)


@pytest.mark.parametrize("shape", [(16, 12, 1), (1, 16, 12), (16, 12, 3), (2, 4, 16, 12)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_an_image_up_to_255_in_another_type_is_refused(shape, dtype):
    with pytest.raises(ValueError, match=r"'image'.*image.*uint8"):
        Codec(spaces.Dict({"image": spaces.Box(0, 255, shape, dtype)}), NUMBER)


@pytest.mark.parametrize("shape", [(84, 84), (84, 84, 9), (12, 84, 84), (5, 84, 84, 2)])
def test_an_image_whose_channels_cannot_be_told_is_refused(shape):
    with pytest.raises(ValueError, match="channel axis"):
        Codec(spaces.Box(0, 255, shape, np.uint8), NUMBER)


def test_planes_and_masks_stay_as_they_are():
    for space in (
        spaces.Box(0, 1, (1, 64, 64), np.float32),
        spaces.Box(0, 1, (64, 64), np.uint8),
        spaces.Box(-1, 1, (64, 64, 3), np.float32),
        spaces.Box(0, 255, (128,), np.uint8),
        spaces.Box(0, 255, (8, 8), np.uint8),
        spaces.Box(0, 1, (10, 10, 7), bool),
    ):
        encoded = Codec(space, NUMBER).observation_space["observation"]
        assert (encoded.shape, encoded.dtype) == (space.shape, np.float32)
        assert (encoded.low.min(), encoded.high.max()) == (space.low.min(), space.high.max())


def test_an_image_of_a_narrower_range_is_decoded_into_its_space():
    space = spaces.Box(0, 9, (8, 8, 3), np.uint8)
    assert space.contains(Codec(space, NUMBER).decode_obs({"image": np.full((3, 8, 8), 200, np.uint8)}))


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 4, 4), (3, 8, 3), (4, 9, 1)])
def test_an_encoded_image_is_left_as_it_is(shape):
    space = spaces.Dict({"image": spaces.Box(0, 255, shape, np.uint8)})
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert Codec(space, NUMBER).observation_space == space
    assert np.array_equal(Codec(space, NUMBER).encode_obs({"image": image})["image"], image)


def test_a_stack_of_images_stays_uint8():
    codec = Codec(spaces.Box(0, 255, (2, 16, 12, 3), np.uint8), NUMBER)
    stack = np.random.default_rng(0).integers(0, 256, (2, 16, 12, 3), np.uint8)
    obs = codec.encode_obs(stack)["image"]
    assert obs.shape == (2, 3, 16, 12) and obs.dtype == np.uint8
    assert np.array_equal(codec.decode_obs({"image": obs}), stack)


def test_a_grid_is_not_an_image_and_stays_unscaled():
    grid = np.random.default_rng(0).uniform(0, 1, (5, 5, 5)).astype(np.float32)
    codec = Codec(spaces.Box(0, 1, (5, 5, 5), np.float32), NUMBER)
    assert np.array_equal(codec.encode_obs(grid)["observation"], grid)
    codes = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    assert not is_image(codes)
    assert Codec(codes, NUMBER).encode_obs(np.full((7, 7, 3), 10, np.uint8))["observation"].max() == 10


def test_text_travels_as_padded_bytes():
    codec = Codec(spaces.Text(3, charset="aé"), NUMBER)
    obs = codec.encode_obs("éa")
    assert obs["text"].tolist() == [0xC3, 0xA9, 0x61, *[255] * 9]
    assert codec.decode_obs(obs) == "éa"
    encoded = codec.observation_space
    assert Codec(encoded, NUMBER).observation_space == encoded
    assert np.array_equal(Codec(encoded, NUMBER).encode_obs(obs)["text"], obs["text"])
    assert space_from_json(json.loads(json.dumps(space_to_json(encoded)))) == encoded


def test_names_that_become_one_are_refused():
    flat = spaces.Dict({"a/b": NUMBER})  # as a nested space looks once it is encoded
    assert Codec(flat, NUMBER).observation_space == flat
    with pytest.raises(ValueError, match=r"'a/b'.*rename"):
        Codec(spaces.Dict({"a/b": NUMBER, "a": spaces.Dict({"b": NUMBER})}), NUMBER)
    for name in ("", 3):
        with pytest.raises(ValueError, match="rename"):
            Codec(spaces.Dict({name: NUMBER}), NUMBER)


def test_spaces_that_hold_nothing_are_refused():
    with pytest.raises(ValueError, match="holds nothing"):
        Codec(spaces.Dict({}), NUMBER)
    with pytest.raises(ValueError, match="holds nothing"):
        Codec(NUMBER, spaces.Tuple([spaces.Box(0, 1, (0,))]))


@pytest.mark.parametrize(
    "space",
    [spaces.Graph(NUMBER, None), spaces.Sequence(NUMBER), spaces.OneOf([NUMBER, spaces.Discrete(2)])],
    ids=["Graph", "Sequence", "OneOf"],
)
def test_a_space_without_an_encoding_is_refused_by_name(space):
    kind = type(space).__name__
    for odd in (spaces.Dict({"odd": space}), spaces.Dict({"odd": spaces.Discrete(2), "part": space})):
        with pytest.raises(ValueError, match=f"'(odd|part)'.*{kind}.*supported"):
            Codec(odd, NUMBER)
        with pytest.raises(ValueError, match=f"'(odd|part)'.*{kind}.*supported"):
            Codec(NUMBER, odd)
    with pytest.raises(ValueError, match=kind):
        space_to_json(space)


def test_text_is_no_action():
    with pytest.raises(ValueError, match=r"'action'.*Text.*supported"):
        Codec(NUMBER, spaces.Text(3))


def test_what_is_read_as_text_lies_in_the_space_as_far_as_it_is_said():
    codec = Codec(spaces.Text(3, min_length=0, charset="ab"), NUMBER)
    dreamt = np.array([*b"xaybab", *[255] * 6], np.uint8)
    assert codec.decode_obs({"text": dreamt}) == "aba"
