"""Traces: lines of JSON become episodes and the same lines again."""

import json

import pytest

from dreamsim.core import text
from dreamsim.data.formats import child, traces
from dreamsim.data.formats.recording import BadRecording, LeftOut
from dreamsim.data.store import Store
from tests.data.formats.recorded import traces as write_lines

STEPS = [
    {"episode": "a", "observation": "hall", "action": "go", "reward": 0.1, "terminated": False, "truncated": False},
    {"episode": "b", "observation": "käfig", "action": "wait", "reward": 0.0, "terminated": False, "truncated": True},
    {"episode": "a", "observation": "door", "action": "open", "reward": 1.0, "terminated": True, "truncated": False},
    {"episode": "b", "observation": ""},
    {"episode": "a", "observation": "sun"},
]
WHOLE = [
    {
        "task": "reach", "observations": [{"arm": [0.1, 2], "goal": 3}, {"arm": [0.2, 2], "goal": 4}],
        "actions": [[0.5, -7.25]], "rewards": [-1.5], "time": [0.0, 0.1], "terminated": False, "truncated": True,
    },
    {
        "task": "hold", "observations": [{"arm": [0.1, 2], "goal": 3}, {"arm": [0.3, 2], "goal": 5}],
        "actions": [[0.5, 1.1], [0.25, 9.5]], "rewards": [0.5, 0.1], "time": [0.0, 0.2], "terminated": True,
        "truncated": False,
    },
]  # fmt: skip


def convert(path, folder):
    job = child.Job("read", "", "traces", str(path), str(folder), 64, 10)
    about = child.read(job, traces)
    return Store(folder), about["notes"]


def again(store, path):
    notes = traces.write(store, path, lambda done, total: None)
    return [json.loads(line) for line in path.read_text().splitlines()], notes


def test_steps_of_a_text_world_in_any_order_and_back(tmp_path):
    store, _ = convert(write_lines(tmp_path / "a.jsonl", STEPS), tmp_path / "store")
    first, second = store
    assert text.decode(first.obs["observation"]) == ["hall", "door", "sun"] and first.terminated
    assert first.reward.tolist() == [0.1, 1.0] and store.meta["traces"]["words"] == ["go", "open", "wait"]
    assert first.action.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert text.decode(second.obs["observation"]) == ["käfig", ""] and not second.terminated
    rows, notes = again(store, tmp_path / "b.jsonl")
    assert rows == [row for name in "ab" for row in STEPS if row["episode"] == name] and not notes


def test_episodes_of_numbers_and_back_with_a_last_action_that_is_never_learned(tmp_path):
    store, _ = convert(write_lines(tmp_path / "a.jsonl", WHOLE), tmp_path / "store")
    first, second = store
    assert first.obs.keys() == {"arm", "goal"} and first.meta["task"] == "reach"
    assert len(second.action) == 1 and second.meta["last"]["action"] == [0.25, 9.5] and not second.terminated
    rows, notes = again(store, tmp_path / "b.jsonl")
    assert rows == WHOLE and not notes


def test_whole_numbers_are_choices(tmp_path):
    lines = [{"observation": [0.0], "action": action} for action in (3, 5, 4)] + [{"observation": [1.0]}]
    store, notes = convert(write_lines(tmp_path / "a.jsonl", lines), tmp_path / "store")
    assert store.codec.raw_action_space.n == 3 and store.codec.raw_action_space.start == 3
    assert store[0].action.argmax(1).tolist() == [0, 2, 1] and "choices from 3 to 5" in notes[0]


def test_many_different_texts_are_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("dreamsim.data.formats.trace_spaces.WORDS", 1)
    store, _ = convert(write_lines(tmp_path / "a.jsonl", STEPS), tmp_path / "store")
    assert text.decode(store[0].action.astype("uint8")) == ["go", "open"]
    rows, _ = again(store, tmp_path / "b.jsonl")
    assert [row.get("action") for row in rows] == ["go", "open", None, "wait", None]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"observations": [[0.0], [1.0]], "actions": [0.5, 0.5, 0.5]}', "one fewer was expected"),
        ('{"observations": [[0.0], [NaN]], "actions": [0.5]}', "NaN or infinite at step 1"),
        ('{"observations": [[0.0], [1.0, 2.0]], "actions": [0.5]}', "inhomogeneous"),
        ('{"observations": ["a", "b"], "actions": [0.5]}', "numbers"),
        ('{"observations": [[0.0]], "actions": []}', ""),
        ('{"observations": [[0.0], [1.0]], "actions": [0.5', "line 2 is no JSON"),
    ],
)
def test_a_bad_episode_is_named_and_the_rest_loads(line, reason, tmp_path):
    good = '{"observations": [[0.0], [1.0]], "actions": [0.5]}'
    (tmp_path / "a.jsonl").write_text(f"{good}\n{line}\n{good}\n")
    store, notes = convert(tmp_path / "a.jsonl", tmp_path / "store")
    assert len(store) == 2 and any(("2" in note or "1" in note) and reason in note for note in notes), notes


def test_an_episode_with_a_torn_line_inside_is_left_out(tmp_path):
    lines = [json.dumps(line) for line in (STEPS[0], STEPS[2], STEPS[4], STEPS[1], STEPS[3])]
    lines[1] = lines[1][:20]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    items = list(traces.read(tmp_path / "a.jsonl").episodes)
    assert isinstance(items[0], LeftOut) and items[0].name == "a" and "line 2" in items[0].reason
    assert len(items[1].action) == 1


def test_a_file_without_steps_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "hello"}\n')
    with pytest.raises(BadRecording, match='line 1 has no "observation"'):
        traces.read(tmp_path / "a.jsonl")
