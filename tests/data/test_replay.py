"""Replay: every observation says where it comes from (1000 * episode + step), so misplacement shows."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamsim.core import tree
from dreamsim.core.spaces import Codec, Scale
from dreamsim.core.types import Before, Episode
from dreamsim.data.replay import Replay

SPACE = spaces.Dict({"count": spaces.Box(-np.inf, np.inf, (1,), np.float32)})
SCALE = Scale(np.zeros(2), np.full(2, 4.0))


def counting(number: int, steps: int, *, terminated: bool = True, reward: bool = True, trace: bool = False) -> Episode:
    count = 1000.0 * number + np.arange(steps + 1)
    return Episode(
        obs={"count": count[:, None].astype(np.float32)},
        action=np.stack([count[:-1], -count[:-1]], 1).astype(np.float32),
        reward=count[1:].astype(np.float32) if reward else None,
        terminated=terminated,
        time=None,
        trace={"token": count[:-1].astype(np.int64)} if trace else {},
        meta={},
    )


def filled(lengths, capacity=1000, **options) -> Replay:
    replay = Replay(capacity, SPACE, 2, seed=3)
    for number, steps in enumerate(lengths):
        replay.add(counting(number, steps, **options), SCALE)
    return replay


def check_aligned(segment, lengths, length):
    """Every row is the window that its index names; padding is zero in every field."""
    for row in range(len(segment.index)):
        episode, offset = segment.index[row].tolist()
        real = min(length, lengths[episode] - offset)
        expected = torch.arange(length + 1.0) + 1000 * episode + offset
        count = segment.obs["count"][row, :, 0]
        assert torch.equal(count[: real + 1], expected[: real + 1]) and not count[real + 1 :].any()
        assert torch.equal(segment.action[row, :real, 0], expected[:real] / 4) and not segment.action[row, real:].any()
        assert torch.equal(segment.reward[row, :real], expected[1 : real + 1]) and not segment.reward[row, real:].any()
        assert segment.mask[row].tolist() == [1.0] * real + [0.0] * (length - real)
        ends = [offset + t + 1 == lengths[episode] for t in range(length)]
        assert segment.terminated[row].tolist() == ends


def equal(one, two) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tree.leaves(one), tree.leaves(two), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    capacity=st.integers(40, 120),
    length=st.integers(1, 50),
)
def test_every_row_is_the_window_its_index_names(lengths, capacity, length):
    replay = filled(lengths, capacity)
    check_aligned(replay.sample(64, length), lengths, length)
    assert replay.steps <= capacity
    assert replay.steps == sum(lengths[len(lengths) - replay.episodes :])


def test_windows_are_drawn_uniformly_over_all_valid_starts():
    lengths = [9, 2, 5]
    drawn = filled(lengths).sample(40_000, 4).index
    windows = {(0, offset) for offset in range(6)} | {(1, 0)} | {(2, 0), (2, 1)}
    seen, times = torch.unique(drawn, dim=0, return_counts=True)
    assert {tuple(row) for row in seen.tolist()} == windows
    expected = 40_000 / len(windows)
    assert ((times - expected) ** 2 / expected).sum() < 26.1  # chi-square, 8 degrees of freedom, p = 0.001


def test_truncation_is_not_termination():
    segment = filled([4], terminated=False).sample(8, 4)
    assert not segment.terminated.any()


@pytest.mark.parametrize("steps", [999, 1000])
def test_episodes_as_long_as_the_capacity_wrap_around(steps):
    replay = filled([steps, steps, 3, steps])
    assert replay.episodes == 1 and replay.steps == steps and replay.added == 4
    segment = replay.sample(10_000, 4)
    check_aligned(segment, [0, 0, 0, steps], 4)
    assert segment.index[:, 1].min() == 0 and segment.index[:, 1].max() == steps - 4


def test_an_episode_longer_than_the_capacity_is_refused_and_nothing_is_lost():
    replay = filled([10])
    with pytest.raises(ValueError, match="1001 steps does not fit into a replay of 1000 steps"):
        replay.add(counting(1, 1001), SCALE)
    with pytest.raises(ValueError, match="0 steps"):
        replay.add(counting(1, 0), SCALE)
    assert replay.episodes == 1 and replay.added == 1


def test_only_whole_oldest_episodes_make_room():
    replay = filled([300, 300, 300])
    replay.add(counting(3, 150), SCALE)  # does not fit into the last 98 rows: begins at row 0, over episode 0
    assert set(replay.sample(2000, 5).index[:, 0].tolist()) == {1, 2, 3}
    replay.add(counting(4, 148), SCALE)  # fits exactly before episode 1
    assert set(replay.sample(2000, 5).index[:, 0].tolist()) == {1, 2, 3, 4}
    replay.add(counting(5, 1), SCALE)
    assert set(replay.sample(2000, 5).index[:, 0].tolist()) == {2, 3, 4, 5}


def test_short_episodes_are_padded_and_their_share_reported():
    replay = filled([10] * 7)
    segment = replay.sample(32, 50)
    check_aligned(segment, [10] * 7, 50)
    coverage = replay.coverage(50)
    assert coverage.episodes == coverage.windows == coverage.short == 7 and coverage.padded == pytest.approx(0.8)
    assert segment.mask.mean() == pytest.approx(1 - coverage.padded)
    assert replay.coverage(10).padded == 0 and replay.coverage(10).short == 0


def test_padding_share_is_that_of_uniform_draws():
    replay = filled([10, 3, 25])
    drawn = 1 - replay.sample(50_000, 8).mask.mean()
    assert drawn == pytest.approx(replay.coverage(8).padded, abs=0.002)


def test_a_window_longer_than_the_replay_is_padded():
    replay = filled([5], capacity=5)
    check_aligned(replay.sample(4, 30), [5], 30)


def test_equal_seeds_draw_equal_windows_and_leave_the_global_generator_alone():
    one, two = filled([30, 40]), filled([30, 40])
    before = torch.get_rng_state()
    assert equal(one.sample(16, 5), two.sample(16, 5))
    assert torch.equal(before, torch.get_rng_state())
    assert not equal(one.sample(16, 5), one.sample(16, 5))


def test_many_draws_at_once_equal_single_draws():
    one, two = filled([30, 4, 40], trace=True), filled([30, 4, 40], trace=True)
    for first, second in zip(one.sample_many(5, 16, 6), [two.sample(16, 6) for _ in range(5)], strict=True):
        assert equal(first, second)
    assert equal(one.sample(16, 6), two.sample(16, 6))


def test_rebuilt_from_the_same_episodes_it_goes_on_with_the_same_draws():
    lengths = [300, 20, 410, 7, 350, 90]
    replay = filled(lengths)
    replay.sample(9, 5)
    saved = replay.state_dict()
    expected = [replay.sample(16, 5) for _ in range(3)]

    again = filled(lengths)
    again.load_state_dict(saved)
    for segment in expected:
        assert equal(segment, again.sample(16, 5))


def test_rebuild_needs_only_the_episodes_still_held_and_may_be_repeated():
    lengths = [300, 20, 410, 7, 350, 90, 500, 120]
    stored = [counting(number, steps) for number, steps in enumerate(lengths)]

    class Reads(list):
        seen = []

        def __getitem__(self, number):
            self.seen.append(number)
            return super().__getitem__(number)

    replay = filled(lengths)
    saved = replay.state_dict()
    again = filled([50])
    source = Reads(stored)
    again.rebuild(saved, source, SCALE)
    again.rebuild(saved, source, SCALE)
    assert min(source.seen) == saved["first"] > 0
    assert (again.steps, again.episodes, again.added) == (replay.steps, replay.episodes, replay.added)
    for number in range(8, 14):  # later removals fall alike
        for held in (replay, again):
            held.add(counting(number, 130), SCALE)
        assert equal(replay.sample(32, 6), again.sample(32, 6))


def test_state_may_be_loaded_twice():
    replay = filled([60, 40])
    saved = replay.state_dict()
    for _ in range(2):
        replay.load_state_dict(saved)
        assert replay.steps == 100


def test_state_of_other_content_is_refused():
    saved = filled([10, 10]).state_dict()
    with pytest.raises(ValueError, match="add the same episodes"):
        filled([10]).load_state_dict(saved)
    with pytest.raises(ValueError, match="only 1 are here"):
        filled([10]).rebuild(saved, [counting(0, 10)], SCALE)


def test_state_holds_only_what_a_weights_only_checkpoint_may(tmp_path):
    replay = filled([10, 10])
    torch.save(replay.state_dict(), tmp_path / "state")
    replay.load_state_dict(torch.load(tmp_path / "state", weights_only=True))


def test_beliefs_come_back_where_they_were_written():
    replay = filled([6, 9])
    assert replay.sample(4, 3).before is None
    segment = replay.sample(200, 3)
    # the belief of an observation is its count, so a misplaced one shows
    count = segment.obs["count"]
    replay.write(segment.index, {"deter": count.clone().requires_grad_(), "stoch": (count[..., 0].long(),)})
    again = replay.sample(200, 3)
    assert isinstance(again.before, Before) and again.before.known.all()
    assert torch.equal(again.before.state["deter"], again.obs["count"][:, 0])
    assert torch.equal(again.before.state["stoch"][0], again.obs["count"][:, 0, 0].long())


def test_rows_without_a_belief_are_marked_and_zero():
    replay = filled([30, 30])
    segment = replay.sample(1, 4)
    replay.write(segment.index, segment.obs["count"] + 0.5)
    (episode, offset), drawn = segment.index[0].tolist(), replay.sample(500, 4)
    inside = (drawn.index[:, 0] == episode) & (drawn.index[:, 1] >= offset) & (drawn.index[:, 1] <= offset + 4)
    assert torch.equal(drawn.before.known, inside) and inside.any() and not inside.all()
    assert not drawn.before.state[~inside].any()
    assert torch.equal(drawn.before.state[inside], drawn.obs["count"][inside, 0] + 0.5)


def test_a_belief_does_not_outlive_its_episode():
    replay = filled([500, 450])
    replay.write(torch.tensor([[0, 0], [1, 0]]), torch.ones(2, 5, 3))
    replay.add(counting(2, 500), SCALE)  # over episode 0
    late = torch.tensor([[0, 100], [2, 100]])
    replay.write(late, torch.full((2, 5, 3), 7.0))  # a late write to episode 0 is ignored
    drawn = replay.sample(20_000, 1)
    known = {tuple(row) for row in drawn.index[drawn.before.known].tolist()}
    assert known <= {(1, t) for t in range(5)} | {(2, 100 + t) for t in range(5)} and {e for e, _ in known} == {1, 2}
    assert (drawn.before.state[drawn.before.known & (drawn.index[:, 0] == 2)] == 7).all()


def test_beliefs_past_the_end_of_a_short_episode_are_ignored():
    replay = filled([2, 2])
    replay.write(torch.tensor([[0, 0]]), torch.ones(1, 6, 1))
    drawn = replay.sample(100, 1)
    assert torch.equal(drawn.before.known, drawn.index[:, 0] == 0)


def test_the_later_of_two_overlapping_writes_counts():
    replay = filled([20])
    replay.write(torch.tensor([[0, 3], [0, 3], [0, 4]]), torch.tensor([1.0, 2.0, 3.0])[:, None].expand(3, 4))
    values = {int(o): float(v) for (_, o), v, k in zip(*_belief_rows(replay), strict=True) if k}
    assert values == {3: 2.0, 4: 3.0, 5: 3.0, 6: 3.0, 7: 3.0}


def _belief_rows(replay):
    drawn = replay.sample(2000, 1)
    return drawn.index.tolist(), drawn.before.state, drawn.before.known


def test_beliefs_for_an_episode_never_added_are_refused():
    with pytest.raises(ValueError, match="only 1 were ever added"):
        filled([5]).write(torch.tensor([[1, 0]]), torch.zeros(1, 3))


def test_beliefs_can_be_kept_in_a_checkpoint():
    lengths = [400, 300, 500, 40]
    replay = filled(lengths)
    segment = replay.sample(64, 5)
    replay.write(segment.index, {"h": segment.obs["count"], "z": segment.obs["count"][..., 0].half()})
    saved = replay.state_dict(), replay.beliefs()
    again = filled(lengths)
    again.load_state_dict(saved[0])
    again.load_beliefs(saved[1], like={"h": torch.zeros(1, 1), "z": torch.zeros(1)})
    one, two = replay.sample(500, 5), again.sample(500, 5)
    assert equal(one, two) and one.before.known.any() and not one.before.known.all()
    assert filled([3]).beliefs() == []


@pytest.mark.parametrize("options", [{}, {"reward": False}, {"trace": True}])
def test_memory_is_foretold_to_the_byte(options):
    space = spaces.Dict({**SPACE.spaces, "image": spaces.Box(0, 255, (3, 8, 8), np.uint8)})
    replay = Replay(50, space, 2)
    for number in range(9):
        episode = counting(number, 12, **options)
        episode.obs["image"] = np.zeros((13, 3, 8, 8), np.uint8)
        replay.add(episode, SCALE)
    needed = {"reward": episode.reward is not None, "trace": episode.trace}
    assert replay.bytes == Replay.bytes_needed(50, space, 2, **needed)
    belief = {"deter": torch.zeros(4, 16), "stoch": (torch.zeros(4, 2, 8, dtype=torch.int8),)}
    segment = replay.sample(4, 3)
    replay.write(segment.index, tree.map(lambda leaf: leaf[:, None].repeat_interleave(4, 1), belief))
    assert replay.bytes == Replay.bytes_needed(50, space, 2, **needed, belief=belief)


def test_recordings_without_reward_give_segments_without_reward():
    replay = filled([9, 9], reward=False)
    assert replay.sample(4, 3).reward is None
    with pytest.raises(ValueError, match="with rewards or episodes without"):
        replay.add(counting(2, 9), SCALE)


def test_traces_travel_and_read_zero_for_episodes_without():
    replay = filled([20], trace=True)
    replay.add(counting(1, 20), SCALE)
    segment = replay.sample(100, 4)
    own = segment.index[:, 0] == 0
    assert segment.trace["token"].dtype == torch.int64
    assert torch.equal(segment.trace["token"][own], segment.obs["count"][own, :-1, 0].long())
    assert not segment.trace["token"][~own].any()


def test_images_keep_their_bytes():
    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 4, 4), np.uint8)})
    replay = Replay(100, space, 2)
    image = np.random.default_rng(0).integers(0, 256, (31, 3, 4, 4), np.uint8)
    replay.add(counting(0, 30)._replace(obs={"image": image}), SCALE)
    segment = replay.sample(8, 6)
    for row, (_, offset) in enumerate(segment.index.tolist()):
        assert segment.obs["image"].dtype == torch.uint8
        assert np.array_equal(segment.obs["image"][row].numpy(), image[offset : offset + 7])


def test_a_known_step_is_read_back_field_by_field():
    codec = Codec(SPACE, spaces.Box(-2.0, 6.0, (1,)))
    replay = Replay(10, SPACE, 1)
    obs = {"count": np.array([[5.0], [6.0]], np.float32)}
    replay.add(Episode(obs, np.array([[4.0]], np.float32), np.array([0.5]), True, None, {}, {}), codec.scale)
    segment = replay.sample(1, 1)
    assert segment.obs["count"].flatten().tolist() == [5.0, 6.0]  # step t reads obs[t] and leads to obs[t + 1]
    assert segment.action.item() == 0.5 and segment.reward.item() == 0.5
    assert segment.terminated.item() is True and segment.mask.item() == 1 and segment.index.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": {}}, "no observation 'count'"),
        (
            {"obs": {"count": np.zeros((6, 1), np.float32)}},
            r"'count' of an episode has shape \(6, 1\), expected \(7, 1\)",
        ),
        ({"action": np.zeros((6, 3), np.float32)}, r"'action' of an episode has shape \(6, 3\), expected \(6, 2\)"),
        ({"reward": np.zeros(7)}, r"reward has shape \(7,\), expected \(6,\)"),
        ({"trace": {"x": np.zeros((7, 2))}}, r"trace 'x' of an episode has shape \(7, 2\), expected \(6, 2\)"),
    ],
)
def test_misshapen_episodes_are_refused_and_change_nothing(change, message):
    replay = filled([6])
    with pytest.raises(ValueError, match=message):
        replay.add(counting(1, 6)._replace(**change), SCALE)
    check_aligned(replay.sample(8, 3), [6], 3)


def test_floats_are_not_squeezed_into_images():
    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 4, 4), np.uint8)})
    with pytest.raises(ValueError, match=r"is float32, expected torch.uint8"):
        Replay(10, space, 2).add(counting(0, 4)._replace(obs={"image": np.zeros((5, 3, 4, 4), np.float32)}), SCALE)


def test_an_empty_replay_says_so():
    with pytest.raises(ValueError, match="empty"):
        Replay(10, SPACE, 2).sample(1, 1)


def test_samples_are_copies():
    replay = filled([6])
    segment = replay.sample(4, 3)
    segment.obs["count"].fill_(-1)
    check_aligned(replay.sample(8, 3), [6], 3)
