"""Importing this registers the ids of the toy worlds and of a run's dream with Gymnasium and does nothing else."""

from gymnasium.envs.registration import register

for _name in ("Clock", "Line", "Echo", "Corridor"):
    register(id=f"dreamsim/{_name}-v0", entry_point=f"dreamsim.envs.toy:{_name}")
register(
    id="dreamsim/Dream-v0",
    entry_point="dreamsim.envs.run_dream:LoneDream",
    vector_entry_point="dreamsim.envs.run_dream:run_dream",
)
