"""Weights by name, and the file of a run that holds them: it tells when it was damaged."""

from __future__ import annotations

import hashlib
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

FILE = "model.safetensors"
DIGEST = "sha256"  # in the file's metadata, of all tensors


class BadRun(ValueError):
    """A run folder is missing something, or is not ours to read."""


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name, on the CPU, without torch.compile's prefixes."""
    state = module.state_dict()
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        kind = type(state[odd[0]]).__name__
        raise BadRun(f"{type(module).__name__} keeps {odd[0]} as a {kind}; make it a tensor buffer")
    # Cloned, for tied weights share memory, which safetensors refuses.
    return {_eager(name): value.detach().cpu().contiguous().clone() for name, value in state.items()}


def load_weights(module: nn.Module, stored: dict[str, Tensor], where: str = "weights") -> None:
    """Fill a module, compiled or not, with what ``weights`` returned.

    Raises BadRun, naming the tensors, when they do not fit, when a parameter is not finite or a buffer holds NaN.
    """
    own = module.state_dict()
    names = {_eager(name): name for name in own}
    wrong = [f"missing {name}" for name in sorted(names.keys() - stored.keys())]
    wrong += [f"unknown {name}" for name in sorted(stored.keys() - names.keys())]
    for name in sorted(names.keys() & stored.keys()):
        came, expected = tuple(stored[name].shape), tuple(own[names[name]].shape)
        if came != expected:
            wrong.append(f"{name} has shape {came}, expected {expected}")
    if wrong:
        shown = "; ".join(wrong[:6]) + ("; ..." if len(wrong) > 6 else "")
        raise BadRun(
            f"{where} does not fit {type(module).__name__}: {shown}. Build it with the arguments it was trained with "
            "(they stand in the run's config.yaml), or has the class changed since?"
        )
    _check_finite(module, stored, where)
    module.load_state_dict({names[name]: value for name, value in stored.items()})


def pack(tensors: dict[str, Tensor]) -> bytes:
    """Return the file's content."""
    return safetensors.torch.save(tensors, {DIGEST: _digest(tensors)})


def unpack(folder: Path) -> dict[str, Tensor]:
    """Return the tensors in a run folder's file. Raises BadRun where it is missing or damaged."""
    file = folder / FILE
    if not file.is_file():
        raise BadRun(f"{folder} holds no {FILE}; copy it beside run.json, or let the run save again")
    try:
        tensors = safetensors.torch.load_file(file)
        with safetensors.safe_open(file, "pt") as content:
            told = (content.metadata() or {}).get(DIGEST)  # None: written by another program
    except safetensors.SafetensorError as error:
        raise BadRun(f"{file} is damaged ({error}); {_cure(folder)}") from error
    if told is not None and told != _digest(tensors):
        raise BadRun(f"{file} is damaged: its numbers are not those that were saved; {_cure(folder)}")
    return tensors


def _check_finite(module: nn.Module, stored: dict[str, Tensor], where: str) -> None:
    learned = {_eager(name) for name, _ in module.named_parameters()}
    for name, value in stored.items():
        bad = ~value.isfinite() if name in learned else value.isnan()  # a buffer may mask with infinity
        if bad.any():
            raise BadRun(
                f"{where}: {name} holds {int(bad.sum())} numbers of {value.numel()} that are NaN or infinite; "
                "use an earlier copy, or train again with a lower rate"
            )


def _cure(folder: Path) -> str:
    kept = (folder / "last.ckpt").is_file()
    return f"restore a copy{f', or save it anew: dreamsim fit --run {folder} --resume' if kept else ''}"


def _digest(tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _eager(name: str) -> str:
    return name.replace("_orig_mod.", "")
