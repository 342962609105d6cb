"""Importing this registers the ids of the toy worlds with Gymnasium and does nothing else."""

from gymnasium.envs.registration import register

for _name in ("Clock", "Line", "Echo", "Corridor"):
    register(id=f"dreamsim/{_name}-v0", entry_point=f"dreamsim.envs.toy:{_name}")
