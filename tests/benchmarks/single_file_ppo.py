"""PPO in one file, as people write it for Gymnasium: it knows nothing of dreams, only an id and its arguments.

python -m tests.benchmarks.single_file_ppo dreamsim.envs:dreamsim/Dream-v0 '{"run": "runs/pendulum", "horizon": 100}'
"""

from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import FlattenObservation, RecordEpisodeStatistics
from torch import Tensor, nn
from torch.distributions import Normal


class Agent(nn.Module):
    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        self.mean = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions)
        )
        self.log_std = nn.Parameter(torch.zeros(actions))

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs)[..., 0]

    def normal(self, obs: Tensor) -> Normal:
        return Normal(self.mean(obs), self.log_std.exp())

    def predict(self, obs: np.ndarray, deterministic: bool = True) -> tuple[np.ndarray, None]:
        with torch.no_grad():
            return self.mean(torch.as_tensor(obs, dtype=torch.float32)).clamp(-1, 1).numpy(), None


def train(
    env_id: str,
    options: dict[str, Any],
    total: int,
    seed: int = 1,
    gamma: float = 0.98,
    num_envs: int = 16,
    num_steps: int = 64,
    rate: float = 1e-3,
    epochs: int = 10,
    minibatches: int = 4,
    reward_scale: float = 0.1,
) -> Agent:
    torch.manual_seed(seed)
    envs = RecordEpisodeStatistics(FlattenObservation(gym.make_vec(env_id, num_envs=num_envs, **options)))
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.shape[0])
    optimiser = torch.optim.Adam(agent.parameters(), lr=rate, eps=1e-5)
    obs, real = torch.as_tensor(envs.reset(seed=seed)[0], dtype=torch.float32), torch.ones(num_envs)
    rounds = total // (num_envs * num_steps)
    for round_ in range(rounds):
        optimiser.param_groups[0]["lr"] = rate * (1 - round_ / rounds)
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(num_steps):
            with torch.no_grad():
                normal, value = agent.normal(obs), agent.value(obs)
                action = normal.sample()
            following, reward, terminated, truncated, _ = envs.step(action.clamp(-1, 1).numpy())
            gain = torch.as_tensor(reward * reward_scale, dtype=torch.float32)
            ended = [torch.from_numpy(end).float() for end in (terminated, terminated | truncated)]
            rows.append((obs, action, normal.log_prob(action).sum(-1), gain, *ended, value, real))
            obs, real = torch.as_tensor(following, dtype=torch.float32), 1 - ended[1]
        learn(agent, optimiser, rows, obs, gamma, epochs, minibatches)
    envs.close()
    return agent


def learn(
    agent: Agent, optimiser: Any, rows: list[Any], last: Tensor, gamma: float, epochs: int, minibatches: int
) -> None:
    columns = (torch.stack(column) for column in zip(*rows, strict=True))
    obs, action, log_prob, reward, terminated, over, value, real = columns
    with torch.no_grad():
        following, advantage, carried = agent.value(last), torch.zeros_like(reward), torch.zeros_like(reward[0])
        for t in reversed(range(len(reward))):
            delta = reward[t] + gamma * following * (1 - terminated[t]) - value[t]
            advantage[t] = carried = delta + gamma * 0.95 * (1 - over[t]) * carried
            following = value[t]
    target = advantage + value
    kept = real.flatten() > 0  # the step by which an environment resets itself is no experience
    flat = [column.flatten(0, 1)[kept] for column in (obs, action, log_prob, advantage, target)]
    for _ in range(epochs):
        for index in torch.randperm(len(flat[0])).chunk(minibatches):
            o, a, before, gain, aim = (column[index] for column in flat)
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            ratio = (agent.normal(o).log_prob(a).sum(-1) - before).exp()
            policy = -torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
            loss = policy + 0.5 * (agent.value(o) - aim).square().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimiser.step()


if __name__ == "__main__":
    train(sys.argv[1], json.loads(sys.argv[2]), total=100_000)
