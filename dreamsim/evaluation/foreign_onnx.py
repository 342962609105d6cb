"""A policy from an ONNX file, run by onnxruntime, its inputs and outputs checked against the spaces.

Inputs are matched to observation fields by name (nested names joined by "/"); a single
input may have any name, and may be all fields laid end to end. An input may take a field as
the environment gives it or as the codec does ((C, H, W) images, one-hot choices): its shape
decides. The output is one action in the environment's own units, for Discrete actions an
integer or one score per choice. An axis of batch that is fixed to 1 is fed row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from dreamsim.core.spaces import Codec, is_image
from dreamsim.core.types import Act, Obs
from dreamsim.evaluation.foreign import BadPolicy, raw_names, raw_part

FACE = "ONNX policy: raw observations in, actions in the environment's own units out"
TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}

Reader = Callable[[dict[str, np.ndarray]], np.ndarray]
"""From codec observations (B, ...) to one input (B, ...) of the network."""


class Onnx:
    """Acts by an ONNX network on real observations. Raises BadPolicy where it does not fit the spaces."""

    def __init__(self, path: Path, codec: Codec) -> None:
        self.path, self.codec = path, codec
        self._session = _session(path)
        self._readers = {spot.name: self._reader(spot) for spot in self._session.get_inputs()}
        self._one_by_one = any(spot.shape and spot.shape[0] == 1 for spot in self._session.get_inputs())
        outputs = self._session.get_outputs()
        named = [spot for spot in outputs if spot.name in ("action", "actions")] or outputs
        self._output = named[0].name
        self._unit(self._run({name: _sample(part) for name, part in codec.observation_space.spaces.items()}))

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on real observations (B, ...)."""
        arrays = {name: value.cpu().numpy() for name, value in view.items()}
        count = len(next(iter(arrays.values())))
        if self._one_by_one:
            rows = [self._run({name: value[row : row + 1] for name, value in arrays.items()}) for row in range(count)]
            raw = np.concatenate(rows)
        else:
            raw = self._run(arrays)
        return Act(torch.from_numpy(self._unit(raw)).to(next(iter(view.values())).device))

    def _run(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        return self._session.run([self._output], {name: read(arrays) for name, read in self._readers.items()})[0]

    def _reader(self, spot: Any) -> Reader:
        """Return what feeds one input, by its name and its shape (B, ...)."""
        if spot.type not in TYPES:
            raise BadPolicy(f"{self.path}: input {spot.name} is a {spot.type}; known: {', '.join(TYPES)}")
        fields = self.codec.observation_space.spaces
        order = raw_names(self.codec.raw_observation_space, self.codec)
        name = spot.name if spot.name in fields else next(iter(fields)) if self._alone() and len(fields) == 1 else None
        if name is not None:
            for shape, read in self._forms(name):
                if _fits(spot.shape[1:], shape):
                    return lambda arrays: read(arrays).astype(TYPES[spot.type])
        elif self._alone() and _fits(spot.shape[1:], (sum(math.prod(part.shape or ()) for part in fields.values()),)):
            return lambda arrays: np.concatenate([arrays[n].reshape(len(arrays[n]), -1) for n in order], 1).astype(
                TYPES[spot.type]
            )
        expected = "; ".join(f"{n}: {' or '.join(str(s) for s, _ in self._forms(n))}" for n in fields)
        raise BadPolicy(
            f"{self.path}: input {spot.name} of shape {spot.shape} does not fit the observations, which are, after the "
            f"batch axis, {expected}. Export the policy with an input for each observation, named like it"
        )

    def _alone(self) -> bool:
        return len(self._session.get_inputs()) == 1

    def _forms(self, name: str) -> list[tuple[tuple[int, ...], Reader]]:
        """Return the shapes in which a field can be read, the environment's own first."""
        raw, shape = raw_part(self.codec, name), self.codec.observation_space.spaces[name].shape or ()
        forms: list[tuple[tuple[int, ...], Reader]] = [(shape, lambda arrays: arrays[name])]
        if is_image(raw) and raw.shape != shape:
            forms.insert(0, (tuple(raw.shape or ()), lambda arrays: np.moveaxis(arrays[name], -3, -1)))
        if isinstance(raw, spaces.Discrete):
            forms.insert(0, ((), lambda arrays: arrays[name].argmax(1) + int(raw.start)))
        return forms

    def _unit(self, raw: np.ndarray) -> np.ndarray:
        """Return unit actions (B, A) of the network's output, or say what it should have been."""
        space = self.codec.raw_action_space
        if isinstance(space, spaces.Discrete):
            if raw.ndim == 2 and raw.shape[1] == space.n and np.issubdtype(raw.dtype, np.floating):
                return np.eye(int(space.n), dtype=np.float32)[raw.argmax(1)]
            if raw.size == len(raw) and np.issubdtype(raw.dtype, np.integer):
                return np.stack([self.codec.encode_action(int(value)) for value in raw.reshape(-1)])
        elif isinstance(space, spaces.Box) and raw.shape[1:] == space.shape:
            low, high = space.low.reshape(-1), space.high.reshape(-1)
            return self.codec.scale.unit(np.clip(raw.reshape(len(raw), -1).astype(np.float32), low, high))
        raise BadPolicy(
            f"{self.path}: output {self._output} has shape {raw.shape} and type {raw.dtype}; expected actions of "
            f"{space} after a batch axis (for Discrete: integers, or one score per choice)"
        )


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise BadPolicy("reading .onnx needs onnxruntime: pip install -c constraints.txt -e '.[foreign]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # policies are small; more threads only wait for each other
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except (
        onnxruntime.capi.onnxruntime_pybind11_state.Fail,
        onnxruntime.capi.onnxruntime_pybind11_state.InvalidProtobuf,
        onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    ) as error:
        raise BadPolicy(f"{path} is no valid ONNX file: {error}") from error


def _fits(declared: list[Any], shape: tuple[int, ...]) -> bool:
    """Say whether a declared shape (its free axes are names or None) admits a real one."""
    return len(declared) == len(shape) and all(
        not isinstance(want, int) or want == size for want, size in zip(declared, shape, strict=True)
    )


def _sample(part: spaces.Space) -> np.ndarray:
    return np.zeros((1, *(part.shape or ())), part.dtype)
