import time
from dataclasses import dataclass

import gymnasium as gym
import torch
import torch.nn as nn
import torch.optim as optim
import tyro
from stable_baselines3.common.buffers import ReplayBuffer
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    exp_name: str = 'sac_continuous'
    seed: int = 1
    cuda: bool = True
    track: bool = False
    wandb_project_name: str = 'cleanRL'
    env_id: str = 'HalfCheetah-v4'
    total_timesteps: int = 1000000
    buffer_size: int = int(1e6)
    gamma: float = 0.99
    batch_size: int = 256
    policy_lr: float = 3e-4
    q_lr: float = 1e-3


class Actor(nn.Module):
    def __init__(self, env):
        super().__init__()
        self.fc1 = nn.Linear(11, 256)


class SoftQNetwork(nn.Module):
    def __init__(self, env):
        super().__init__()
        self.fc1 = nn.Linear(14, 256)


if __name__ == '__main__':
    args = tyro.cli(Args)
    if args.track:
        import wandb
        wandb.init(project=args.wandb_project_name, sync_tensorboard=True, config=vars(args))
    writer = SummaryWriter(f'runs/{args.env_id}__{args.seed}')
    device = torch.device('cuda' if torch.cuda.is_available() and args.cuda else 'cpu')
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(args.env_id)])
    actor = Actor(envs).to(device)
    qf1 = SoftQNetwork(envs).to(device)
    q_optimizer = optim.Adam(list(qf1.parameters()), lr=args.q_lr)
    actor_optimizer = optim.Adam(list(actor.parameters()), lr=args.policy_lr)
    rb = ReplayBuffer(args.buffer_size, envs.observation_space, envs.action_space, device)
    for global_step in range(args.total_timesteps):
        batch = rb.sample(args.batch_size)
        if global_step % 100 == 0:
            writer.add_scalar('charts/SPS', global_step / time.perf_counter(), global_step)
            print('SPS:', global_step)
