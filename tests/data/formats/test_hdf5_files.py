"""robomimic and D4RL: what each row becomes, and what is refused."""

import h5py
import numpy as np
import pytest

from dreamsim.data.formats import hdf5
from dreamsim.data.formats.recording import BadRecording, LeftOut
from tests.data.formats.recorded import d4rl, robomimic


def read(path):
    recording = hdf5.read(path)
    return recording, list(recording.episodes)


def test_d4rl_ends_by_terminal_or_timeout_with_the_observation_that_followed(tmp_path):
    recording, episodes = read(d4rl(tmp_path / "a.hdf5"))
    assert [len(episode.action) for episode in episodes] == [4, 1, 6]
    assert [episode.terminated for episode in episodes] == [True, False, False]
    assert [episode.meta["truncated"] for episode in episodes] == [False, True, True]
    for number, first, episode in zip(range(3), (0, 4, 5), episodes, strict=True):
        steps = np.arange(len(episode.action) + 1)
        assert (episode.obs["observation"][:, 0] == 100 * number + steps).all()
        assert (episode.reward == first + steps[:-1]).all()
        assert (episode.trace["info/qpos"][:, 0] == 100 * number + steps[:-1]).all()
        assert "last" not in episode.meta
    assert any("[-1, 1]" in note for note in recording.notes) and any("metadata" in note for note in recording.notes)


def test_d4rl_without_following_observations_keeps_last_actions_beside_what_is_learned(tmp_path):
    recording, episodes = read(d4rl(tmp_path / "a.hdf5", following=False))
    assert isinstance(episodes[1], LeftOut) and "row 4" in episodes[1].reason
    first, _, third = episodes
    assert len(first.action) == 3 and not first.terminated
    assert first.meta["last"]["terminated"] and first.meta["last"]["reward"] == 3.0
    assert np.float32(first.meta["last"]["action"][0]) == np.float32(3 / 1000)
    assert first.meta["last"]["info"] == {"info/qpos": [3, 3]}
    assert len(third.action) == 5 and not third.meta["last"]["terminated"]
    assert any("1 terminations" in note for note in recording.notes)


def test_d4rl_without_timeouts_is_cut_where_the_next_observation_does_not_follow(tmp_path):
    recording, episodes = read(d4rl(tmp_path / "a.hdf5", timeouts=False))
    assert [len(episode.action) for episode in episodes] == [4, 1, 6]
    assert any("no timeouts" in note for note in recording.notes)
    assert any("1 steps" in note for note in recording.notes)


def test_d4rl_fields_of_different_lengths_are_refused_by_name(tmp_path):
    path = d4rl(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["rewards"] = np.zeros(7)
    with pytest.raises(BadRecording, match="rewards has 7 rows, observations has 11"):
        hdf5.read(path)


def test_robomimic_demos_in_their_order_with_filters_rate_and_success(tmp_path):
    recording, episodes = read(robomimic(tmp_path / "a.hdf5"))
    assert recording.rate == 20 and recording.total == 3
    assert recording.meta["robomimic"]["env_args"]["env_name"] == "Lift"
    assert [episode.meta["demo"] for episode in episodes] == ["demo_0", "demo_2", "demo_10"]
    assert [episode.meta["filters"] for episode in episodes] == [["train"], [], ["train"]]
    assert [episode.terminated for episode in episodes] == [True, False, False]
    third = episodes[2]
    assert third.obs["arm"][:, 0].tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert third.obs["camera"].shape == (7, 3, 12, 10) and third.obs["camera"][:, 0, 0, 0].tolist() == [*range(5, 12)]


def test_robomimic_without_next_obs_keeps_the_last_action_in_meta(tmp_path):
    recording, episodes = read(robomimic(tmp_path / "a.hdf5", lengths=(4, 2, 6), following=False))
    assert [len(episode.action) for episode in episodes] == [3, 1, 5]
    assert episodes[0].meta["last"] == {"action": [0.03] * 3, "reward": 1.0, "terminated": True}
    assert not episodes[0].terminated and any("3 of 3 demos" in note for note in recording.notes)


def test_one_bad_demo_is_left_out_and_named(tmp_path):
    path = robomimic(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_2/actions"]
    _, episodes = read(path)
    assert isinstance(episodes[1], LeftOut) and episodes[1].name == "demo_2" and "actions" in episodes[1].reason
    assert [len(episode.action) for episode in episodes[::2]] == [4, 6]


def _external(file, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(88))
    file.create_dataset("rewards", (11,), "f8", external=[(str(tmp_path / "secret"), 0, 88)])


def _link(file, tmp_path):
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["x"] = np.zeros(11)
    file["rewards"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "x")


def _virtual(file, tmp_path):
    layout = h5py.VirtualLayout((11,), "f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "x", (11,))
    file.create_virtual_dataset("rewards", layout)


def _objects(file, tmp_path):
    rows = np.array([b"cos\nsystem\n(S'true'\ntR."] * 11, object)
    file.create_dataset("rewards", data=rows, dtype=h5py.special_dtype(vlen=bytes))


def _opaque(file, tmp_path):
    file["rewards"] = np.array([b"cos\nsystem\n(S'true'\ntR."] * 11, h5py.opaque_dtype(np.dtype("V24")))


@pytest.mark.parametrize("make", [_external, _link, _virtual, _objects, _opaque])
def test_what_lies_in_other_files_or_holds_objects_is_refused(make, tmp_path):
    path = d4rl(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["rewards"]
        make(file, tmp_path)
    try:
        found = list(hdf5.read(path).episodes)
    except BadRecording:
        return
    assert all(isinstance(item, LeftOut) and "rewards" in item.reason for item in found)


def test_other_hdf5_files_are_told_what_was_expected(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["weights"] = np.zeros(3)
    with pytest.raises(BadRecording, match=r"expected robomimic .* found weights"):
        hdf5.read(tmp_path / "a.hdf5")
