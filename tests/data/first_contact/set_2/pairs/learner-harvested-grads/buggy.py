"""Off-policy quantile critics with a learner that collects gradients per optimizer."""
import random
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class AlgoConfig:
    obs_dim: int = 3
    act_dim: int = 1
    n_critics: int = 2
    n_quantiles: int = 5
    top_quantiles_to_drop: int = 1
    gamma: float = 0.9
    tau: float = 0.02
    lr: dict = field(default_factory=lambda: {"qf": 3e-3, "policy": 3e-3, "alpha": 3e-3})
    batch_size: int = 64
    warmup: int = 128
    updates: int = 150
    seed: int = 2


class PointEnv:
    def reset(self):
        self.state = torch.randn(3)
        return self.state.clone()

    def step(self, action):
        self.state[0] += 0.5 * action[0].clamp(-1, 1)
        reward = -(self.state[0] - self.state[1]).abs().item()
        return self.state.clone(), reward


class QuantileCritics(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(cfg.obs_dim + cfg.act_dim, 32), nn.ReLU(), nn.Linear(32, cfg.n_quantiles))
            for _ in range(cfg.n_critics)
        )

    def forward(self, obs, act):
        x = torch.cat([obs, act], dim=-1)
        return torch.stack([net(x) for net in self.nets], dim=1)


class Policy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cfg.obs_dim, 32), nn.ReLU(), nn.Linear(32, 2 * cfg.act_dim))

    def forward(self, obs):
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        dist = torch.distributions.Normal(mean, log_std.clamp(-4, 1).exp())
        raw = dist.rsample()
        act = torch.tanh(raw)
        return act, (dist.log_prob(raw) - torch.log(1 - act.pow(2) + 1e-6)).sum(-1, keepdim=True)


class TQCModule(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.policy, self.qf, self.target_qf = Policy(cfg), QuantileCritics(cfg), QuantileCritics(cfg)
        self.target_qf.load_state_dict(self.qf.state_dict())
        self.target_qf.requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))

    def forward_train(self, batch):
        act_curr, logp_curr = self.policy(batch["obs"])
        with torch.no_grad():
            act_next, logp_next = self.policy(batch["next_obs"])
            qf_next = self.target_qf(batch["next_obs"], act_next)
        qf_preds = self.qf(batch["obs"], batch["act"])
        qf_curr = self.qf(batch["obs"], act_curr)
        return dict(logp_curr=logp_curr, logp_next=logp_next, qf_next=qf_next, qf_preds=qf_preds, qf_curr=qf_curr)


class TQCLearner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.module = TQCModule(cfg)
        self.named_params = {k: list(getattr(self.module, k).parameters()) for k in ("qf", "policy")}
        self.named_params["alpha"] = [self.module.log_alpha]
        self.optimizers = {k: torch.optim.Adam(p, lr=cfg.lr[k]) for k, p in self.named_params.items()}

    def compute_losses(self, out, batch):
        cfg, alpha = self.cfg, self.module.log_alpha.exp().detach()
        keep = cfg.n_critics * (cfg.n_quantiles - cfg.top_quantiles_to_drop)
        target = out["qf_next"].flatten(1).sort(dim=1).values[:, :keep] - alpha * out["logp_next"]
        target = batch["reward"] + cfg.gamma * target
        diff = target[:, None, None, :] - out["qf_preds"][..., None]
        huber = F.smooth_l1_loss(diff, torch.zeros_like(diff), reduction="none")
        tau = (torch.arange(cfg.n_quantiles) + 0.5) / cfg.n_quantiles
        qf_loss = ((tau.view(1, 1, -1, 1) - (diff < 0).float()).abs() * huber).mean()
        policy_loss = (alpha * out["logp_curr"] - out["qf_curr"].mean(dim=(1, 2)).unsqueeze(1)).mean()
        alpha_loss = -(self.module.log_alpha * (out["logp_curr"].detach() - cfg.act_dim)).mean()
        return {"qf": qf_loss, "policy": policy_loss, "alpha": alpha_loss}

    def compute_gradients(self, losses):
        grads = {}
        for name, optimizer in self.optimizers.items():
            optimizer.zero_grad(set_to_none=True)
            losses[name].backward()
            grads.update({p: p.grad for p in self.named_params[name]})
        return grads

    def apply_gradients(self, grads):
        for name, optimizer in self.optimizers.items():
            for p in self.named_params[name]:
                p.grad = grads[p]
            optimizer.step()

    def update(self, batch):
        losses = self.compute_losses(self.module.forward_train(batch), batch)
        self.apply_gradients(self.compute_gradients(losses))
        with torch.no_grad():
            for t, s in zip(self.module.target_qf.parameters(), self.module.qf.parameters()):
                t.lerp_(s, self.cfg.tau)
        return {k: v.item() for k, v in losses.items()}


def main():
    cfg = AlgoConfig()
    torch.manual_seed(cfg.seed)
    random.seed(cfg.seed)
    env, learner, memory = PointEnv(), TQCLearner(cfg), deque(maxlen=2000)
    obs = env.reset()
    for step in range(cfg.warmup + cfg.updates):
        with torch.no_grad():
            act = learner.module.policy(obs.unsqueeze(0))[0].squeeze(0)
        next_obs, reward = env.step(act)
        memory.append({"obs": obs, "act": act, "next_obs": next_obs, "reward": torch.tensor([reward])})
        obs = env.reset() if step % 8 == 7 else next_obs
        if len(memory) > cfg.warmup:
            rows = random.sample(memory, cfg.batch_size)
            stats = learner.update({k: torch.stack([r[k] for r in rows]) for k in rows[0]})
            if step % 40 == 0:
                print(step, {k: round(v, 4) for k, v in stats.items()})
    with torch.no_grad():
        obs, act = (torch.stack([r[k] for r in memory]) for k in ("obs", "act"))
        q = learner.module.qf(obs, act).mean().item()
    return {"mean_q": q, "qf_loss": stats["qf"]}


if __name__ == "__main__":
    main()
