"""How Minari writes a space, and what it does with images."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from dreamsim.data.formats.recording import BadRecording

SIDE = 32  # of the smallest array that counts as an image


def from_text(text: Any, name: str) -> spaces.Space:
    """Return the space that ``metadata.json`` describes. Raises BadRecording for what cannot be understood."""
    try:
        return _space(json.loads(text) if isinstance(text, str) else text)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        raise BadRecording(f"the {name} in metadata.json cannot be understood ({error})") from error


def _space(about: dict[str, Any]) -> spaces.Space:
    kind = about["type"]
    if kind == "Dict":
        return spaces.Dict({name: _space(part) for name, part in about["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_space(part) for part in about["subspaces"]])
    if kind == "Box":
        dtype, shape = np.dtype(about["dtype"]), tuple(about["shape"])
        if dtype.kind not in "biuf":
            raise ValueError(f"a Box of {dtype}")
        low, high = (np.array(about[side], dtype).reshape(shape) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(int(about["n"]), start=int(about["start"]))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(about["nvec"], dtype=np.dtype(about["dtype"]).type, start=about.get("start"))
    if kind == "MultiBinary":
        return spaces.MultiBinary(about["n"])
    if kind == "Text":
        return spaces.Text(about["max_length"], min_length=about["min_length"], charset=about["charset"])
    raise ValueError(f"no kind of space is called {kind!r}")


def is_encoded(space: spaces.Space) -> bool:
    """Say whether Minari keeps values of a space as JPEG, where its dataset does so at all."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return min(space.shape[:2]) >= SIDE and bool((space.low == 0).all() and (space.high == 255).all())


def has_images(space: spaces.Space) -> bool:
    """Say whether such values occur in a space."""
    if isinstance(space, spaces.Dict):
        return any(has_images(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(has_images(part) for part in space.spaces)
    return is_encoded(space)


def decoded(frames: Sequence[bytes], space: spaces.Box) -> np.ndarray:
    """Return JPEG images as uint8 (N, H, W) or (N, H, W, C)."""
    from PIL import Image

    out = np.empty((len(frames), *space.shape), np.uint8)
    for number, frame in enumerate(frames):
        with Image.open(io.BytesIO(frame), formats=["JPEG"]) as image:
            if image.size != (space.shape[1], space.shape[0]):  # before it is decoded: its size may be a lie
                raise ValueError(f"an image of {image.size} where {space.shape[1::-1]} was expected")
            out[number] = np.asarray(image).reshape(space.shape)
    return out
