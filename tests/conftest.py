"""One thread for every test: small tensors are faster so, and results do not depend on the machine's cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "egl")

import torch

torch.set_num_threads(1)
