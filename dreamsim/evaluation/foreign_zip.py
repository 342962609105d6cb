"""A Stable-Baselines3 policy from its zip, without unpickling anything.

The zip's ``data`` is JSON whose ":serialized:" fields are pickles: they are never decoded.
What is needed stands beside them in clear text or in the shapes of ``policy.pth``, which is
read by torch with weights_only=True. Known are the standard policies of PPO, A2C, SAC, TD3,
DDPG and DQN on vectors, dicts and images (SB3's NatureCNN), acting without randomness as
SB3's ``predict(deterministic=True)`` does.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.spaces import Codec, is_image
from dreamsim.core.types import Act, Obs
from dreamsim.evaluation.foreign import BadPolicy, raw_names, raw_part

FACE = (
    "Stable-Baselines3 policy: assumed to have been trained on this environment's raw observations and actions "
    "(a Dict flattened in its own order is fine); VecNormalize's statistics are not in the zip, so a policy "
    "trained behind it must be exported to ONNX together with them"
)
CURE = "export the policy to ONNX (torch.onnx.export of its deterministic action) and name the .onnx file"

# The actor's weights by kind: (name that tells the kind, trunk, head, where features come from, usual activation)
ACTOR_CRITIC = ("action_net.weight", "mlp_extractor.policy_net", "action_net", "", "Tanh")
SAC = ("actor.mu.weight", "actor.latent_pi", "actor.mu", "actor.", "ReLU")
TD3 = ("actor.mu.0.weight", "actor.mu", "", "actor.", "ReLU")
DQN = ("q_net.q_net.0.weight", "q_net.q_net", "", "q_net.", "ReLU")
# What belongs to other networks than the actor.
OTHERS = re.compile(
    r"(value_net|mlp_extractor\.value_net|vf_features_extractor|critic|critic_target|actor_target|q_net_target)\."
    r"|(actor\.)?log_std"
)
ACTIVATIONS = ("Tanh", "ReLU", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid", "Softplus")
EXTRACTOR = re.compile(
    r"<class 'stable_baselines3\.common\.torch_layers\.(FlattenExtractor|NatureCNN|CombinedExtractor)'>"
)


class StableBaselines(nn.Module):
    """The deterministic policy of an SB3 zip; acts on real observations in the codec's form.

    Raises BadPolicy where the zip is damaged, holds a policy of another kind, or does not
    fit the environment's spaces.
    """

    def __init__(self, path: Path, codec: Codec) -> None:
        super().__init__()
        self.path, self.codec = path, codec
        data, weights = _read(path)
        self._options = data.get("policy_kwargs") or {}
        _check_classes(path, data, self._options)
        kind = _kind(path, weights)
        _, trunk, head, source, usual = kind
        _check_action(path, data, codec, kind)
        self._squash = kind in (SAC, TD3) or bool(self._options.get("squash_output", False))
        used: set[str] = set()
        self.extractors = self._extractors(weights, _extractor_prefix(weights, source), used)
        self.net = _net(weights, trunk, head, _activation(path, self._options, usual), used)
        self._check_all_used(weights, used, source)
        self._check_sizes()
        self.eval().requires_grad_(False)

    @torch.no_grad()
    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return unit actions (B, A) for observations (B, ...)."""
        outputs = self.net(self._features(view)).cpu()
        space = self.codec.raw_action_space
        if isinstance(space, spaces.Box):
            raw = self._box_actions(outputs, space)
            return Act(torch.from_numpy(self.codec.scale.unit(raw)))
        return Act(torch.cat([_one_hot(part) for part in self._choices(outputs, space)], -1))

    def _features(self, view: Obs) -> Tensor:
        parts = []
        for name in raw_names(self.codec.raw_observation_space, self.codec):
            value = self._preprocessed(view[name].float(), raw_part(self.codec, name))
            parts.append(self.extractors[_slot(name)](value) if _slot(name) in self.extractors else value.flatten(1))
        return torch.cat(parts, 1)

    def _preprocessed(self, value: Tensor, raw: spaces.Space) -> Tensor:
        """Do as SB3 does with 3-D bytes, small grids included: channels first, divided by 255."""
        if not (isinstance(raw, spaces.Box) and raw.dtype == np.uint8 and len(raw.shape) == 3):
            return value
        if raw.low.any() or (raw.high != 255).any():
            return value
        if not is_image(raw) and int(np.argmin(raw.shape)) != 0:
            value = value.permute(0, 3, 1, 2)
        return value / 255 if self._options.get("normalize_images", True) else value

    def _box_actions(self, outputs: Tensor, space: spaces.Box) -> np.ndarray:
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        if self._squash:
            return low + 0.5 * (torch.tanh(outputs).numpy() + 1.0) * (high - low)
        return np.clip(outputs.numpy(), low, high)

    def _choices(self, outputs: Tensor, space: spaces.Space) -> list[Tensor]:
        if isinstance(space, spaces.Discrete):
            return [outputs]
        if isinstance(space, spaces.MultiDiscrete):
            return list(torch.split(outputs, space.nvec.reshape(-1).tolist(), 1))
        return []

    def _extractors(self, weights: dict[str, Tensor], prefix: str, used: set[str]) -> nn.ModuleDict:
        found = nn.ModuleDict()
        for name, space in self.codec.observation_space.spaces.items():
            inner = f"{prefix}extractors.{name}." if f"{prefix}extractors.{name}.cnn.0.weight" in weights else prefix
            if is_image(space) and f"{inner}cnn.0.weight" in weights:
                found[_slot(name)] = _nature(self.path, weights, inner, space, used)
        return found

    def _check_all_used(self, weights: dict[str, Tensor], used: set[str], source: str) -> None:
        twin = "features_extractor." if any(name.startswith("pi_features_extractor.") for name in used) else None
        left = [
            name
            for name in weights.keys() - used
            if not OTHERS.match(name) and not (twin is not None and name.startswith(twin))
        ]
        if left:
            raise BadPolicy(f"{self.path} holds weights that no standard policy has: {sorted(left)[:4]}; {CURE}")

    def _check_sizes(self) -> None:
        sample = {
            name: torch.zeros(
                (1, *(space.shape or ())), dtype=torch.uint8 if space.dtype == np.uint8 else torch.float32
            )
            for name, space in self.codec.observation_space.spaces.items()
        }
        came = self._features(sample).shape[1]
        layers = [layer for layer in self.net if isinstance(layer, nn.Linear)]
        if layers[0].in_features != came:
            raise BadPolicy(
                f"{self.path} reads {layers[0].in_features} numbers, the environment gives {came} "
                f"({self.codec.raw_observation_space}); evaluate it in the environment it was trained in, with the "
                "same wrappers (frame stacking, flattening, image size)"
            )
        if layers[-1].out_features != self.codec.action_size:
            raise BadPolicy(
                f"{self.path} gives {layers[-1].out_features} numbers, the environment's actions have "
                f"{self.codec.action_size} ({self.codec.raw_action_space})"
            )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
            stored = io.BytesIO(archive.read("policy.pth"))
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadPolicy(
            f"{path} is no Stable-Baselines3 zip ({error}); it needs the members data and policy.pth"
        ) from error
    try:
        weights = torch.load(stored, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise BadPolicy(
            f"policy.pth in {path} is not a plain table of tensors and was not opened: loading it could run code. "
            f"Save the model again with model.save(...), or {CURE}"
        ) from error
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise BadPolicy(f"policy.pth in {path} is not a table of tensors; save the model again with model.save(...)")
    return data, weights


def _check_classes(path: Path, data: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse policies and feature extractors of the user's own, whose code is in a pickle."""
    module = (data.get("policy_class") or {}).get("__module__", "")
    if not module.startswith("stable_baselines3."):
        raise BadPolicy(
            f"{path} holds a policy class of {module or 'unknown origin'}, which is not one of SB3's own; {CURE}"
        )
    extractor = options.get("features_extractor_class")
    if extractor is not None and not EXTRACTOR.fullmatch(str(extractor)):
        raise BadPolicy(f"{path} uses the features extractor {extractor}, which is not one of SB3's own; {CURE}")


def _kind(path: Path, weights: dict[str, Tensor]) -> tuple[str, str, str, str, str]:
    for kind in (ACTOR_CRITIC, SAC, TD3, DQN):
        if kind[0] in weights and not any("lstm" in name for name in weights):
            return kind
    raise BadPolicy(
        f"{path} holds none of SB3's standard policies (PPO, A2C, SAC, TD3, DDPG, DQN without recurrence or gSDE for "
        f"SAC); its weights begin with {sorted(weights)[:4]}; {CURE}"
    )


def _check_action(path: Path, data: dict[str, Any], codec: Codec, kind: tuple) -> None:
    space = codec.raw_action_space
    takes_box = kind in (SAC, TD3)
    if takes_box != isinstance(space, spaces.Box) and kind is not ACTOR_CRITIC:
        raise BadPolicy(f"{path} acts in a {'Box' if takes_box else 'Discrete'}, the environment takes {space}")
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete)):
        raise BadPolicy(f"actions of {space} are not supported for SB3 policies; {CURE}")
    stored = data.get("action_space") or {}
    for side in ("low", "high"):
        came = _numbers(stored.get(side))
        wanted = getattr(space, side).reshape(-1) if isinstance(space, spaces.Box) else None
        if came is None or wanted is None or len(came) not in (1, len(wanted)):
            continue
        if not np.allclose(came, wanted, rtol=1e-4, atol=1e-6):
            raise BadPolicy(
                f"{path} was trained for actions with {side} {came.tolist()}, the environment has {wanted.tolist()}; "
                "evaluate it in the environment it was trained in"
            )


def _numbers(text: Any) -> np.ndarray | None:
    """Return the numbers of an array printed in full; None where it was shortened or is no text."""
    if not isinstance(text, str) or "..." in text:
        return None
    return np.array([float(number) for number in re.findall(r"-?inf|[-+]?\d*\.?\d+(?:e[-+]?\d+)?", text)])


def _activation(path: Path, options: dict[str, Any], usual: str) -> type[nn.Module]:
    named = options.get("activation_fn")
    name = usual if named is None else str(named).removesuffix("'>").rpartition(".")[2]
    if name not in ACTIVATIONS or (named is not None and "torch.nn" not in str(named)):
        raise BadPolicy(f"{path} uses the activation {named}; known: {', '.join(ACTIVATIONS)}; {CURE}")
    return getattr(nn, name)


def _extractor_prefix(weights: dict[str, Tensor], source: str) -> str:
    own = any(name.startswith("pi_features_extractor.") for name in weights)
    return "pi_features_extractor." if own and not source else f"{source}features_extractor."


def _net(
    weights: dict[str, Tensor], trunk: str, head: str, activation: type[nn.Module], used: set[str]
) -> nn.Sequential:
    """Return linear layers with activations between; the last one (the head) has none."""
    numbers = sorted({int(name[len(trunk) + 1 :].split(".")[0]) for name in weights if name.startswith(f"{trunk}.")})
    names = [f"{trunk}.{number}" for number in numbers] + ([head] if head else [])
    layers: list[nn.Module] = []
    for name in names:
        layers += [_linear(weights, name, used), activation()]
    return nn.Sequential(*layers[:-1])


def _linear(weights: dict[str, Tensor], name: str, used: set[str]) -> nn.Linear:
    matrix = weights[f"{name}.weight"]
    if matrix.dim() != 2 or f"{name}.bias" not in weights:
        raise BadPolicy(f"weights {name} are not those of a linear layer with bias; {CURE}")
    layer = nn.Linear(matrix.shape[1], matrix.shape[0])
    return _filled(layer, weights, name, used)


def _filled(layer: Any, weights: dict[str, Tensor], name: str, used: set[str]) -> Any:
    layer.load_state_dict({part: weights[f"{name}.{part}"] for part in ("weight", "bias")})
    used.update((f"{name}.weight", f"{name}.bias"))
    return layer


def _nature(path: Path, weights: dict[str, Tensor], prefix: str, space: Any, used: set[str]) -> nn.Sequential:
    """Return SB3's NatureCNN (Mnih et al. 2015): kernels 8, 4, 3 with strides 4, 2, 1."""
    shapes = [(32, space.shape[0], 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    layers: list[nn.Module] = []
    for number, shape, stride in zip((0, 2, 4), shapes, (4, 2, 1), strict=True):
        came = tuple(weights[f"{prefix}cnn.{number}.weight"].shape)
        if came != shape:
            raise BadPolicy(
                f"{path}: a convolution has weights {came}, expected NatureCNN's {shape} for {space}; {CURE}"
            )
        layer = nn.Conv2d(shape[1], shape[0], shape[2], stride)
        layers += [_filled(layer, weights, f"{prefix}cnn.{number}", used), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), _linear(weights, f"{prefix}linear.0", used), nn.ReLU())


def _one_hot(scores: Tensor) -> Tensor:
    return nn.functional.one_hot(scores.argmax(1), scores.shape[1]).float()


def _slot(name: str) -> str:
    return name.replace(".", "_")
