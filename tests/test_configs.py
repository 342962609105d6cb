"""Every config that ships is understood by the command, down to its last argument."""

from pathlib import Path

import pytest

from dreamsim.cli import main

CONFIGS = sorted(path for path in Path("configs").glob("*/*.yaml") if path.parent.name != "results")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_config_is_understood(config, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", str(config), "--print_config"])
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "seed_everything:" in printed and "class_path:" in printed
