"""The parts of a run as plain data: an import path and its arguments, and back.

A part is whatever a config builds late, when the spaces are known: a class, a function,
or either of them with arguments (``functools.partial``, which is also what jsonargparse
gives for a ``Callable`` type). Its description is
``{"class_path": "worldmodels.decoder_free.DecoderFree", "init_args": {"latent": 64}}``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import sysconfig
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

OWN = ("dreamsim", "worldmodels", "robots")

Description = dict[str, Any]
"""``{"class_path": str, "init_args": {name: plain JSON, or a Description}}``."""


class BadPart(ValueError):
    """A part cannot be described, found, or trusted."""


def describe(factory: Callable) -> Description:
    """Return the description of a factory; ``build`` is the inverse.

    Raises BadPart for what has no import path (a lambda, a local or interactive
    definition) and for arguments that are neither plain data nor factories.
    """
    target, arguments = _open(factory)
    if isinstance(target, dict):
        return target
    path = f"{target.__module__}.{target.__qualname__}"
    if "<" in path or target.__module__ == "__main__":
        raise BadPart(
            f"{path} has no import path, so a run could not be loaded again; "
            "move it to the top level of a file of its own, such as mine.py, and name it mine.NAME"
        )
    _check_base(target, path)
    plain = {name: _plain(value, f"{path}: {name}") for name, value in arguments.items()}
    return {"class_path": path, "init_args": plain}


def build(description: Description, *args: Any) -> Any:
    """Build the object of a description, called with late ``args`` such as spaces.

    Imports only from installed packages and the working directory, and checks before
    calling that an ``nn.Module`` or a ``gymnasium.Env`` will come out. Factories among
    the arguments stay factories. Raises BadPart.
    """
    path = description["class_path"]
    target = resolve(path)
    _check_base(target, path)
    arguments = {name: _live(value) for name, value in description.get("init_args", {}).items()}
    try:
        inspect.signature(target).bind(*args, **arguments)
    except TypeError as error:
        raise BadPart(
            f"{path}{inspect.signature(target)} does not take the arguments it is given ({error}); "
            "was its signature changed?"
        ) from error
    part = target(*args, **arguments)
    if not isinstance(part, _bases()):
        raise BadPart(f"{path} returned a {type(part).__name__}; expected a torch.nn.Module or a gymnasium.Env")
    return part


def portable(factory: Callable) -> Callable:
    """Return a factory that can go to another process: one with an import path goes as its description."""
    try:
        return functools.partial(build, describe(factory))
    except BadPart:
        return factory  # a lambda or a local class, which the sender may still be able to carry


def resolve(path: str) -> Any:
    """Return what an import path names, importing only installed packages and the working directory."""
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise BadPart(f"{path!r} is no import path; write it as module.Name, for example mine.MyModel")
    _check_origin(module_name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BadPart(
            f"cannot import {path}: {error}. Run from the folder that holds the file, or install the package"
        ) from error
    if name not in vars(module):
        raise BadPart(f"{module_name} ({module.__file__}) has no {name}; was it renamed?")
    return vars(module)[name]


def user_modules(*descriptions: Description) -> dict[str, dict[str, str]]:
    """Return ``{module: {"file", "sha256"}}`` of all modules named that are the user's own files."""
    found = {}
    for path in sorted({path for description in descriptions for path in _paths(description)}):
        name = path.rpartition(".")[0]
        file = module_file(name)
        if file is not None and name.partition(".")[0] not in OWN and not is_installed(name):
            shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file.name
            found[name] = {"file": str(shown), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    return found


def module_file(name: str) -> Path | None:
    """Return the file of a module, or None for one that has none or does not exist."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return Path(file).resolve() if file else None
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.has_location and spec.origin else None


def is_installed(name: str) -> bool:
    """Say whether a module belongs to an installed package or to Python itself."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in _distributions():
        return True
    file = module_file(top)
    homes = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")]
    return file is not None and any(file.is_relative_to(home) for home in homes)


@functools.cache
def _distributions() -> frozenset[str]:
    return frozenset(importlib.metadata.packages_distributions())


def _check_origin(name: str) -> None:
    top = name.partition(".")[0]
    if top in OWN or is_installed(top):
        return
    spec = importlib.util.find_spec(top) if top not in sys.modules else sys.modules[top].__spec__
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else ())]
    here = Path.cwd().resolve()
    if any(not Path(place).resolve().is_relative_to(here) for place in places):
        raise BadPart(
            f"{name} lies in {places[0]}, which is neither an installed package nor below the working directory "
            f"{here}; run from the folder that holds it"
        )


def _open(factory: Any) -> tuple[Any, dict[str, Any]]:
    """Return what a factory calls in the end (or a ready description) and the arguments bound to it."""
    if not isinstance(factory, functools.partial):
        if inspect.isclass(factory) or inspect.isfunction(factory):
            return factory, {}
        raise BadPart(f"expected a class or a function, got {factory!r}; name it by its import path")
    if factory.func is build:
        return factory.args[0], {}
    if getattr(factory.func, "__module__", "").startswith("jsonargparse"):
        classes = [arg for arg in factory.args if inspect.isclass(arg)]
        return classes[-1], dict(factory.keywords)
    if factory.args:
        raise BadPart(f"bind the arguments of {factory.func.__qualname__} by name, not by position")
    return factory.func, dict(factory.keywords)


def _plain(value: Any, where: str) -> Any:
    """Return an argument as JSON; a tuple keeps its kind, a factory becomes its description."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _plain(part, where) for name, part in value.items()}
    if isinstance(value, tuple):
        return {"__tuple__": [_plain(part, where) for part in value]}
    if isinstance(value, list):
        return [_plain(part, where) for part in value]
    if inspect.isclass(value) or inspect.isfunction(value) or isinstance(value, functools.partial):
        return describe(value)
    raise BadPart(
        f"{where} holds a {type(value).__name__}, which a run folder cannot keep; "
        "take plain numbers and names, or a factory (Callable) that builds it"
    )


def _live(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"class_path", "init_args"}:
            return functools.partial(build, value)
        if value.keys() == {"__tuple__"}:
            return tuple(_live(part) for part in value["__tuple__"])
        return {name: _live(part) for name, part in value.items()}
    return [_live(part) for part in value] if isinstance(value, list) else value


def _check_base(target: Any, path: str) -> None:
    product = target
    if inspect.isfunction(target):
        product = _returned(target, path)
    if not (inspect.isclass(product) and issubclass(product, _bases())):
        raise BadPart(
            f"{path} is not trusted: expected a class derived from torch.nn.Module or gymnasium.Env, "
            f"or a function annotated to return one (def make(...) -> nn.Module), got {target!r}"
        )


def _bases() -> tuple[type, ...]:
    """Return what a part may be. Processes that only step environments never load torch for it."""
    torch = sys.modules.get("torch")
    return (gym.Env,) if torch is None else (gym.Env, torch.nn.Module)


def _returned(function: Callable, path: str) -> Any:
    try:
        return typing.get_type_hints(function).get("return")
    except NameError as error:
        raise BadPart(
            f"the annotations of {path} cannot be read: {error}; import that name outside TYPE_CHECKING"
        ) from error


def _paths(value: Any) -> typing.Iterator[str]:
    if isinstance(value, dict):
        if "class_path" in value:
            yield value["class_path"]
        for part in value.values():
            yield from _paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from _paths(part)
