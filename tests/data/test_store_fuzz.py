"""Any bytes in the small files beside the data give the same, or one clear error; nothing is run or taken."""

import json

import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dreamsim.core.run import BadPart, BadRun, describe, load, read, save
from dreamsim.data.format import DamagedStore
from dreamsim.data.store import Store
from worldmodels.decoder_free import DecoderFree, nano

few = settings(
    max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NUMBER = spaces.Box(-1.0, 1.0, (2,))
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=4),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    Store.create(folder / "store", NUMBER, NUMBER, rate=20).close()
    model = nano(spaces.Dict({"observation": NUMBER}), NUMBER)
    made = {"observation_space": NUMBER, "action_space": NUMBER, "parts": {"model": describe(nano)}, "about": {}}
    save(folder / "run", model=model, policy=None, **made)
    return folder


def damaged(text, data):
    """Return the text with a byte changed, cut short, or with one of its values replaced."""
    place = data.draw(st.integers(0, len(text) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "value"]))
    if kind == "flip":
        return text[:place] + bytes([text[place] ^ (1 << data.draw(st.integers(0, 7)))]) + text[place + 1 :]
    if kind == "cut":
        return text[:place]
    content = json.loads(text)
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(junk)
    return json.dumps(content).encode()


@few
@given(st.data())
def test_a_damaged_description_of_a_store_is_read_or_refused(whole, data):
    file = whole / "store" / "store.json"
    text = file.read_bytes()
    try:
        file.write_bytes(damaged(text, data))
        assert len(Store(whole / "store", mend=False)) == 0
    except DamagedStore as error:
        assert "store" in str(error)
    except PermissionError as error:  # an older format, which reading alone does not bring up to date
        assert "Store(" in str(error)
    finally:
        file.write_bytes(text)


@few
@given(st.data())
def test_a_damaged_record_of_a_run_is_read_or_refused(whole, data):
    file = whole / "run" / "run.json"
    text = file.read_bytes()
    try:
        file.write_bytes(damaged(text, data))
        assert read(whole / "run")["format"] == 1
    except (BadRun, BadPart) as error:
        assert str(error)
    finally:
        file.write_bytes(text)


def test_what_was_put_back_loads(whole):
    assert isinstance(load(whole / "run").model, DecoderFree)
