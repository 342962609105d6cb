"""Before a run its needs are told, and what cannot fit is refused before anything is done."""

from pathlib import Path

import pytest
import torch

from dreamsim.training import foresee
from tests.training.conftest import run, small_experience, weights


def test_foreseeing_changes_no_bit_of_the_run(straight, tmp_path, capsys):
    _, module = straight
    seen = run(tmp_path, callbacks=[foresee.Foresee()])
    assert "of memory for replay" in capsys.readouterr().out
    ours, theirs = weights(module), weights(seen)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_what_the_store_takes_is_foreseen(straight):
    """Line has one observed and one acted number and a reward: 12 bytes a step, and a last observation an episode."""
    folder, module = straight
    experience = small_experience()
    experience.trainer = module.trainer
    experience.codec, experience.repeat = module.experience.codec, 1
    assert foresee.stored_bytes(experience, 320) == 320 * 12
    written = sum(path.stat().st_size for path in Path(folder / "store").rglob("*") if path.is_file())
    assert written > 320 * 12 * 0.5


def test_what_cannot_fit_is_refused_with_the_cure(tmp_path):
    with pytest.raises(MemoryError, match="smaller capacity"):
        foresee._check_room(2**60, 0, tmp_path)
    with pytest.raises(OSError, match="free some space"):
        foresee._check_room(0, 2**60, tmp_path)
