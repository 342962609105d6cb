"""What a run logs on its way, as one CSV file that survives a resume."""

from __future__ import annotations

import csv
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only


class LossFile(Logger):
    """Writes ``losses.csv``: one row per call, columns joined as they appear, empty where a row has no value.

    A resumed run goes on in the same file: rows of the stopped process at or after the step
    where it continues are dropped first, for they are about to be repeated.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.file = Path(folder) / "losses.csv"
        self._rows: list[dict[str, Any]] | None = None
        self._columns: list[str] = []

    @property
    def name(self) -> str:
        """Part of Lightning's folder names; unused."""
        return ""

    @property
    def version(self) -> str:
        """Part of Lightning's folder names; unused."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self.file.parent)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Hyperparameters stand in config.yaml and run.json."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row; a new name rewrites the file with one more column."""
        row = {"step": step, **metrics}
        if self._rows is None:
            self._rows = [kept for kept in self._read() if step is None or float(kept["step"] or 0) < step]
            self._columns = list(dict.fromkeys(name for kept in self._rows for name in kept))
            self._rewrite()
        self._rows.append(row)
        if set(row) <= set(self._columns):
            with self.file.open("a", newline="") as stream:
                csv.DictWriter(stream, self._columns).writerow(row)
        else:
            self._columns += [name for name in row if name not in self._columns]
            self._rewrite()

    def _read(self) -> list[dict[str, Any]]:
        if not self.file.is_file():
            return []
        with self.file.open(newline="") as stream:
            return list(csv.DictReader(stream))

    def _rewrite(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.file.with_suffix(f".{os.getpid()}")
        with temporary.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, self._columns)
            writer.writeheader()
            writer.writerows(self._rows or [])
        temporary.replace(self.file)
