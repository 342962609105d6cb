"""The log of a run keeps every row once, whatever columns come and however often the run is resumed."""

import csv
from pathlib import Path

from dreamsim.training.losses import LossFile


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "losses.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_columns_join_as_they_appear(tmp_path):
    log = LossFile(tmp_path)
    log.log_metrics({"a": 1.0}, 10)
    log.log_metrics({"a": 2.0, "b": 3.0}, 20)
    log.log_metrics({"b": 4.0}, 30)
    assert rows(tmp_path) == [
        {"step": "10", "a": "1.0", "b": ""},
        {"step": "20", "a": "2.0", "b": "3.0"},
        {"step": "30", "a": "", "b": "4.0"},
    ]


def test_a_resumed_run_repeats_no_row(tmp_path):
    first = LossFile(tmp_path)
    for step in (10, 20, 30, 40):
        first.log_metrics({"a": float(step)}, step)
    resumed = LossFile(tmp_path)
    resumed.log_metrics({"a": -30.0, "c": 1.0}, 30)
    resumed.log_metrics({"a": -40.0}, 40)
    assert [(row["step"], row["a"]) for row in rows(tmp_path)] == [
        ("10", "10.0"),
        ("20", "20.0"),
        ("30", "-30.0"),
        ("40", "-40.0"),
    ]
