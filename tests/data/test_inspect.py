"""What ``dreamsim check data`` finds in recordings whose faults are known."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from dreamsim.cli import main
from dreamsim.core.types import Episode
from dreamsim.data import inspect
from dreamsim.data.store import Store
from tests.data.formats import lerobot_source as source

SEEN = spaces.Dict(
    {
        "state": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "top": spaces.Box(0, 255, (3, 8, 8), np.uint8),
    }
)


def episode(seed, steps=30, start=None):
    """Return a smooth walk with pictures, its times on a beat of 20 a second."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(size=(steps + 1, 3)) * 0.1 + np.where(rng.random(3) < 0.5, -0.1, 0.1)
    state = (rng.normal(size=3) * 5 if start is None else start) + np.cumsum(moves, 0)
    pictures = rng.integers(0, 256, (steps + 1, 3, 8, 8), np.uint8)
    action = rng.uniform(-1, 1, (steps, 2)).astype(np.float32)
    time = np.arange(steps + 1) / 20
    obs = {"state": state.astype(np.float32), "top": pictures}
    return Episode(obs, action, np.zeros(steps, np.float32), False, time, {}, {})


def found(tmp_path, episodes, rate=20.0):
    """Return the findings in a store of these episodes."""
    space = spaces.Box(-1, 1, (2,), np.float32)
    with Store.create(tmp_path / "store", SEEN, space, rate=rate) as store:
        for each in episodes:
            store.append(each)
    return inspect.examine(tmp_path / "store")


def changed(each, name, values):
    return each._replace(obs={**each.obs, name: values})


def test_good_recordings_have_no_findings(tmp_path):
    examined = found(tmp_path, [episode(seed) for seed in range(6)])
    assert examined.findings == [] and examined.undecided == 0
    assert inspect.tell(examined) == [
        "a store of ours: 6 episodes of 30 steps, 180 in all, 20 steps/s",
        "actions Box(-1.0, 1.0, (2,), float32)",
        "camera 'top': channels, height, width (3, 8, 8)",
        examined.facts[3],
        examined.facts[4],
        "nothing wrong was found",
    ]


def test_merged_episodes_are_found_where_they_jump(tmp_path):
    one, other = episode(1), episode(2)
    merged = Episode(
        {name: np.concatenate([one.obs[name], other.obs[name]]) for name in one.obs},
        np.concatenate([one.action, one.action[:1], other.action]),
        None,
        False,
        np.arange(62) / 20,
        {},
        {},
    )
    examined = found(tmp_path, [episode(3), merged, episode(4), episode(5)])
    (finding,) = examined.findings
    assert finding.what.startswith("episode 1: observations jump at step 30,") and finding.decide


def test_a_split_episode_is_found_where_it_goes_on(tmp_path):
    whole = episode(0)
    halves = [
        whole._replace(
            obs={name: rows[part] for name, rows in whole.obs.items()},
            action=whole.action[part][:15],
            reward=whole.reward[:15],
            time=whole.time[:16],
        )
        for part in (slice(0, 16), slice(15, 31))
    ]
    examined = found(tmp_path, [episode(6), *halves, episode(7), episode(8), episode(9)])
    assert [each.what for each in examined.findings] == ["episode 2 goes on where episode 1 stops: split in two"]


def test_a_clock_that_does_not_keep_the_declared_rate(tmp_path):
    slow = [episode(seed)._replace(time=np.arange(31) / 10) for seed in range(3)]
    gap = np.arange(31) / 10
    gap[12:] += 0.2
    examined = found(tmp_path, [*slow, episode(4)._replace(time=gap)])
    rate, beat = examined.findings
    assert rate.what == "declared 20 steps/s, but the clock says 10" and rate.decide
    assert beat.what == "episode 3: 2 frames missing after frame 11" and "interpolate" in beat.done


def test_numbers_that_are_none_copies_and_actions_out_of_bounds(tmp_path):
    broken = episode(1)
    state = broken.obs["state"].copy()
    state[4, 1] = np.nan
    wild = episode(2)
    wild = wild._replace(action=wild.action * np.float32(3))
    examined = found(tmp_path, [episode(0), changed(broken, "state", state), wild, episode(0), episode(5)])
    words = [each.what for each in examined.findings]
    assert words[0] == "episode 1: NaN or infinity in observation 'state'"
    assert words[1].startswith("2") and "actions lie outside their bounds" in words[1] and "episode 2" in words[1]
    assert words[2] == "episode 3 is episode 0 again"
    assert examined.undecided == 3 == len(words)


def test_columns_and_cameras_that_never_change(tmp_path):
    still = []
    for seed in range(4):
        each = episode(seed)
        state = each.obs["state"] * np.array([1, 0, 1], np.float32)
        still.append(changed(each, "state", state))
    still[1] = changed(still[1], "top", np.zeros_like(still[1].obs["top"]))
    still[2] = changed(still[2], "top", np.repeat(still[2].obs["top"][:1], 31, 0))
    examined = found(tmp_path, still)
    assert {each.what for each in examined.findings} == {
        "components 1 of observation 'state' never change",
        "episode 1: camera 'top' shows one colour only",
        "episode 2: camera 'top' shows a picture that stands",
    }
    assert examined.undecided == 1


def test_a_damaged_store_is_only_read(tmp_path):
    found(tmp_path, [episode(seed) for seed in range(3)])
    path = tmp_path / "store/blocks/00000000.block"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    (tmp_path / "store/blocks/00000001.block.tmp").write_bytes(b"half")
    before = {file: file.read_bytes() for file in (tmp_path / "store").rglob("*") if file.is_file()}
    examined = inspect.examine(tmp_path / "store")
    words = [each.what for each in examined.findings]
    assert any("00000001.block.tmp belongs to no episode" in each for each in words)
    assert any(each.startswith("episode 1: damaged store") for each in words) and examined.undecided >= 1
    assert "2 episodes" in examined.facts[0]
    assert {file: file.read_bytes() for file in (tmp_path / "store").rglob("*") if file.is_file()} == before


def test_a_foreign_recording_says_what_reading_did(tmp_path):
    stamps = np.delete(np.arange(21), 7) / 30
    made = source.v21(tmp_path / "set", lengths=(20,), cameras=("top",), stamps=stamps)
    (made / "data/chunk-000/episode_000007.parquet").write_bytes(b"")
    examined = inspect.examine(made)
    assert examined.facts[0] == "lerobot: 2 episodes of 6 to 12 steps, 18 in all, 30 steps/s"
    told = inspect.tell(examined)
    choose = "choose --clock mask, drop or interpolate"
    assert f"? episode 0: masked: 1 frames missing after frame 6; cut there into 2 pieces; {choose}" in told
    assert any(line.startswith("? orphan files") and "episode_000007.parquet" in line for line in told)
    assert list(tmp_path.iterdir()) == [made]


def test_nothing_there_is_one_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        inspect.examine(tmp_path / "nothing")


def test_the_command_tells_by_its_exit_code(tmp_path, capsys):
    for folder, last in (("good", episode(2)), ("twice", episode(0))):
        found(tmp_path / folder, [episode(0), episode(1), last])
    assert main(["check", "data", str(tmp_path / "good/store")]) == 0
    assert "nothing wrong was found" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["check", "data", str(tmp_path / "twice/store")])
    assert ended.value.code == 1
    assert "? episode 2 is episode 0 again; both are used: leave one out" in capsys.readouterr().out
