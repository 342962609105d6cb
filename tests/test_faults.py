"""An error is told by the user's own lines where it arose in them, and warnings are one line each."""

import functools
import importlib
import warnings

import pytest

from dreamsim import cli, commands
from dreamsim.faults import in_own_code, plain_warnings

OWN = """
def trip(values):
    return values["x"]


def through(call):
    call()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_lines.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_lines")
    del importlib.sys.modules["own_lines"]


def test_only_the_users_own_lines_are_shown(own):
    with pytest.raises(KeyError) as caught:
        cli.auto_cli(lambda: own.trip({}), args=[])
    said = in_own_code(caught.value)
    assert 'own_lines.py, line 3, in trip: return values["x"]' in said and "KeyError: 'x'" in said
    assert "jsonargparse" not in said and "DREAMSIM_TRACE=1" in said


def test_an_error_that_passes_through_no_line_of_the_users_has_none(own):
    try:
        commands.at_least(1, jobs=0)
    except ValueError as error:
        inner = error.with_traceback(error.__traceback__.tb_next)  # without this test's own frame
    assert in_own_code(inner) is None


def test_the_command_tells_a_fault_in_own_code(own, monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "doctor", functools.partial(own.trip, {}))
    assert cli.main(["doctor"]) == 1
    assert "an error in your own code:\n  own_lines.py, line 3" in capsys.readouterr().err


def test_a_warning_is_one_line_without_a_place_in_our_source(capsys):
    with plain_warnings():
        warnings.warn("it has changed", stacklevel=1)
    assert capsys.readouterr().err == "dreamsim: warning: it has changed\n"
