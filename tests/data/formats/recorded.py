"""Small recordings in other people's formats, made of numbers that tell where they belong."""

import json

import numpy as np

LENGTHS = (4, 1, 6)


def steps(lengths=LENGTHS):
    """Yield (episode, first row, rows): observation and action of row k are k, so that misplacement shows."""
    begin = 0
    for episode, length in enumerate(lengths):
        yield episode, begin, np.arange(begin, begin + length)
        begin += length


def d4rl(path, lengths=LENGTHS, following=True, timeouts=True):
    """Write rows whose next observation is one more; episode 0 terminates, the others are cut short."""
    import h5py

    rows = np.arange(sum(lengths), dtype=np.float32)
    ends = np.cumsum(lengths) - 1
    with h5py.File(path, "w") as file:
        # Each episode begins at 100 times its number, so no row continues the episode before.
        seen = np.concatenate([100 * episode + np.arange(length) for episode, length in enumerate(lengths)])
        file["observations"] = np.stack([seen, -seen], 1).astype(np.float32)
        file["actions"] = rows[:, None] / 1000
        file["rewards"] = rows
        file["terminals"] = np.isin(rows, ends[:1])
        file["infos/qpos"] = np.stack([seen, seen], 1)
        file["metadata/algorithm"] = b"SAC"
        if timeouts:
            file["timeouts"] = np.isin(rows, ends[1:])
        if following:
            file["next_observations"] = np.stack([seen + 1, -seen - 1], 1).astype(np.float32)
    return path


def robomimic(path, lengths=LENGTHS, following=True):
    """Write demos whose first one succeeds; demo_10 comes after demo_2."""
    import h5py

    with h5py.File(path, "w") as file:
        names = ["demo_0", "demo_2", "demo_10"]
        file.create_group("data").attrs["env_args"] = json.dumps(
            {"env_kwargs": {"control_freq": 20}, "env_name": "Lift"}
        )
        for name, (episode, _, rows) in zip(names, steps(lengths), strict=True):
            demo = file.create_group(f"data/{name}")
            image = np.zeros((len(rows), 12, 10, 3), np.uint8) + rows[:, None, None, None].astype(np.uint8)
            demo["obs/arm"], demo["obs/camera"] = rows[:, None].astype(np.float64), image
            if following:
                demo["next_obs/arm"], demo["next_obs/camera"] = rows[:, None] + 1.0, image + 1
            demo["actions"] = rows[:, None] / 100 + np.zeros((1, 3))
            demo["rewards"] = (np.arange(len(rows)) == len(rows) - 1) * float(episode == 0)
            demo["dones"] = np.arange(len(rows)) == len(rows) - 1
            demo["states"] = np.zeros((len(rows), 5))
            demo.attrs["num_samples"] = len(rows)
        file["mask/train"] = np.array([b"demo_0", b"demo_10"])
    return path


def traces(path, lines):
    """Write lines of JSON."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
