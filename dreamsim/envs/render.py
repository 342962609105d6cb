"""Pictures of a MuJoCo scene on machines with or without a screen.

The OpenGL back end is the one that ``MUJOCO_GL`` names, else the first of EGL, OSMesa and
GLFW that really draws something. Every picture is drawn by a context of our own, so that
closing one environment never blackens another.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import subprocess
import sys
import weakref
from typing import Any

import numpy as np

BACK_ENDS = ("egl", "osmesa", "glfw")
INSTALL = {
    "egl": "apt-get install libegl1 libgl1-mesa-dri (or a GPU driver)",
    "osmesa": "apt-get install libosmesa6",
    "glfw": "a screen (DISPLAY)",
}
TRIES = 3

_SCENE = """<mujoco><worldbody><light pos="0 0 3"/><geom type="sphere" size=".5"/></worldbody></mujoco>"""


_PROBE = """
import os, sys
from dreamsim.envs.render import NoPicture, draw_sphere
try:
    draw_sphere(sys.argv[1])
except NoPicture as error:
    print(error, flush=True)
    os._exit(1)
"""


class NoPicture(RuntimeError):
    """Nothing here can draw, or a drawn frame came out black."""


class Eye:
    """Draws a model's data as RGB (height, width, 3) uint8, fast: no shadows, reflections or multisampling.

    ``backend`` names the OpenGL back end, None: as ``choose_backend``. Raises NoPicture where
    nothing can draw.
    """

    def __init__(self, model: Any, backend: str | None = None) -> None:
        import mujoco

        self.backend = backend or choose_backend()
        self._gl: Any = None
        self._context: Any = None
        self._size = (0, 0)
        self._mujoco, self._model = mujoco, model
        self._scene = mujoco.MjvScene(model, maxgeom=10000)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = False
        self._option, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()

    def see(self, data: Any, height: int, width: int, camera: int | str = 0) -> np.ndarray:
        """Draw from a camera by number or name; a model without cameras is seen from the free one."""
        self._aim(camera)
        for _ in range(TRIES):
            frame = self._draw(data, height, width)
            if frame.any():
                return frame
            self.close()  # a lost context gives zeros: make a new one
        raise NoPicture(
            f"the {self.backend} back end drew {TRIES} black frames in a row; the camera may see nothing, "
            "or MUJOCO_GL may name a back end that does not work here (see `dreamsim doctor`)"
        )

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Free the OpenGL context; seeing again makes a new one."""
        if self._gl is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
        self._gl = self._context = None
        self._size = (0, 0)

    def _draw(self, data: Any, height: int, width: int) -> np.ndarray:
        mujoco = self._mujoco
        if self._gl is None or height > self._size[0] or width > self._size[1]:
            self._open(height, width)
        self._gl.make_current()
        area = mujoco.MjrRect(0, 0, width, height)
        seen = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, seen, self._scene)
        mujoco.mjr_render(area, self._scene, self._context)
        frame = np.empty((height, width, 3), np.uint8)
        mujoco.mjr_readPixels(frame, None, area, self._context)
        return np.ascontiguousarray(frame[::-1])  # OpenGL counts rows from below

    def _open(self, height: int, width: int) -> None:
        self.close()
        vision = self._model.vis
        kept = (vision.quality.shadowsize, vision.quality.offsamples, vision.global_.offheight, vision.global_.offwidth)
        self._size = (max(kept[2], height), max(kept[3], width))
        vision.quality.shadowsize, vision.quality.offsamples = 0, 0
        vision.global_.offheight, vision.global_.offwidth = self._size
        try:
            self._gl, self._context = _open_context(self.backend, self._model, *self._size)
        finally:
            vision.quality.shadowsize, vision.quality.offsamples = kept[:2]
            vision.global_.offheight, vision.global_.offwidth = kept[2:]
        _opened().add(self)

    def _aim(self, camera: int | str) -> None:
        mujoco, model = self._mujoco, self._model
        number = camera
        if isinstance(camera, str):
            names = [model.camera(i).name for i in range(model.ncam)]
            if camera not in names:
                raise ValueError(f"this model has no camera {camera!r}; it has {names or 'none'}")
            number = names.index(camera)
        if 0 <= number < model.ncam:
            self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED.value, number
        elif number <= 0:
            mujoco.mjv_defaultFreeCamera(model, self._camera)
        else:
            raise ValueError(f"this model has no camera {number}; it has {model.ncam}, counted from 0")


@functools.cache
def choose_backend() -> str:
    """Return the OpenGL back end to draw with; raises NoPicture saying what to install."""
    wanted = os.environ.get("MUJOCO_GL", "").lower().strip()
    if wanted in BACK_ENDS:
        return wanted
    for backend in BACK_ENDS:
        if probe(backend) is None:
            return backend
    cures = "; ".join(f"{backend}: {INSTALL[backend]}" for backend in BACK_ENDS)
    raise NoPicture(f"no OpenGL back end can draw here. Any one of these is enough: {cures}")


@functools.cache
def probe(backend: str) -> str | None:
    """Draw one frame with a back end in a process of its own: None, or why it does not work.

    A broken driver may end its process; a probe survives that.
    """
    # The module of each back end is imported by name; mujoco itself must not fail on it before.
    environment = {**os.environ, "MUJOCO_GL": "disabled", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("PYOPENGL_PLATFORM", None)
    try:
        result = subprocess.run(
            [sys.executable, "-c", _PROBE, backend], env=environment, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return "no picture within 60 seconds"
    if result.returncode == 0:
        return None
    return result.stdout.strip() or f"the process that tried ended with code {result.returncode}"


def draw_sphere(backend: str) -> np.ndarray:
    """Draw a lit sphere, (64, 64, 3) uint8: the picture that a probe needs."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    eye = Eye(model, backend)
    try:
        return eye.see(data, 64, 64)
    finally:
        eye.close()


def _open_context(backend: str, model: Any, height: int, width: int) -> tuple[Any, Any]:
    """Return OpenGL's and MuJoCo's context, current. Drivers fail in many ways; each becomes one NoPicture."""
    import mujoco

    if backend not in BACK_ENDS:
        raise ValueError(f"unknown OpenGL back end {backend!r}; known: {', '.join(BACK_ENDS)}")
    try:
        opengl = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
        opengl.make_current()
        context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
    except Exception as error:
        raise NoPicture(f"the {backend} back end does not work here ({error}); it needs {INSTALL[backend]}") from error
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, context)
    return opengl, context


@functools.cache
def _opened() -> weakref.WeakSet[Eye]:
    """The eyes with a context, closed at exit: before the driver's own exit, for it comes first in line."""
    eyes: weakref.WeakSet[Eye] = weakref.WeakSet()
    atexit.register(_close_all, eyes)
    return eyes


def _close_all(eyes: weakref.WeakSet[Eye]) -> None:
    for eye in list(eyes):
        eye.close()
