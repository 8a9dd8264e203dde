"""Truncated quantile critics with a learner that computes all gradients first and applies them afterwards."""
import copy
from dataclasses import dataclass, field

import torch
import torch.nn as nn
from torch.distributions import Normal


@dataclass
class LearnerConfig:
    n_critics: int = 2
    n_quantiles: int = 5
    drop: int = 1
    gamma: float = 0.9
    tau: float = 0.05
    lr: dict = field(default_factory=lambda: {"qf": 1e-3, "policy": 1e-3, "alpha": 1e-3})
    target_entropy: float = -2.0
    batch_size: int = 64
    iterations: int = 250
    seed: int = 0


def mlp(i, o, h=32):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, o))


class TQCModule(nn.Module):
    def __init__(self, obs_dim, act_dim, cfg):
        super().__init__()
        self.policy = mlp(obs_dim, 2 * act_dim)
        self.qf = nn.ModuleList(mlp(obs_dim + act_dim, cfg.n_quantiles) for _ in range(cfg.n_critics))
        self.qf_target = copy.deepcopy(self.qf).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(-1.0))
        self.cfg = cfg

    def sample(self, obs):
        mean, log_std = self.policy(obs).chunk(2, -1)
        dist = Normal(mean, log_std.clamp(-4, 1).exp())
        u = dist.rsample()
        act = torch.tanh(u)
        return act, (dist.log_prob(u) - torch.log(1 - act ** 2 + 1e-6)).sum(-1, keepdim=True)

    @staticmethod
    def quantiles(critics, obs, act):
        x = torch.cat([obs, act], -1)
        return torch.stack([c(x) for c in critics], 1)

    def forward_train(self, batch):
        with torch.no_grad():
            next_act, next_logp = self.sample(batch["next_obs"])
            z = self.quantiles(self.qf_target, batch["next_obs"], next_act).flatten(1).sort(1).values
            z = z[:, : z.shape[1] - self.cfg.drop * self.cfg.n_critics]
            target = batch["reward"] + self.cfg.gamma * (1 - batch["done"]) * (z - self.log_alpha.exp() * next_logp)
        act, logp = self.sample(batch["obs"])
        return {
            "qf_pred": self.quantiles(self.qf, batch["obs"], batch["act"]),
            "target": target,
            "qf_curr": self.quantiles(self.qf, batch["obs"], act).mean((1, 2)),
            "logp": logp.squeeze(-1),
        }


def quantile_huber(pred, target):
    n = pred.shape[-1]
    taus = (torch.arange(n) + 0.5) / n
    delta = target[:, None, None, :] - pred[..., None]
    huber = torch.where(delta.abs() > 1, delta.abs() - 0.5, 0.5 * delta ** 2)
    return ((taus[:, None] - (delta.detach() < 0).float()).abs() * huber).mean()


class Learner:
    def __init__(self, module, cfg):
        self.module, self.cfg = module, cfg
        groups = {"qf": module.qf.parameters(), "policy": module.policy.parameters(), "alpha": [module.log_alpha]}
        self.optimizers = {k: torch.optim.Adam(p, lr=cfg.lr[k]) for k, p in groups.items()}

    def params_of(self, name):
        return [p for g in self.optimizers[name].param_groups for p in g["params"]]

    def compute_losses(self, out):
        alpha = self.module.log_alpha.exp()
        return {
            "qf": quantile_huber(out["qf_pred"], out["target"]),
            "policy": (alpha.detach() * out["logp"] - out["qf_curr"]).mean(),
            "alpha": -(self.module.log_alpha * (out["logp"].detach() + self.cfg.target_entropy)).mean(),
        }

    def compute_gradients(self, losses):
        grads = {}
        for name, optimizer in self.optimizers.items():
            optimizer.zero_grad(set_to_none=True)
            losses[name].backward(retain_graph=name != "alpha")
            grads.update({p: p.grad.clone() for p in self.params_of(name)})
        return grads

    def apply_gradients(self, grads):
        for name, optimizer in self.optimizers.items():
            for p in self.params_of(name):
                p.grad = grads[p]
            optimizer.step()

    @torch.no_grad()
    def update_targets(self):
        for p, tp in zip(self.module.qf.parameters(), self.module.qf_target.parameters()):
            tp.lerp_(p, self.cfg.tau)

    def update(self, batch):
        losses = self.compute_losses(self.module.forward_train(batch))
        self.apply_gradients(self.compute_gradients(losses))
        self.update_targets()
        return {k: v.item() for k, v in losses.items()}


def collect(n, gen):
    obs = torch.randn(n, 3, generator=gen)
    act = torch.rand(n, 2, generator=gen) * 2 - 1
    next_obs = 0.8 * obs + 0.3 * torch.cat([act, act.sum(-1, keepdim=True)], -1)
    reward = -(next_obs ** 2).mean(-1, keepdim=True)
    done = (torch.rand(n, 1, generator=gen) < 0.05).float()
    return {"obs": obs, "act": act, "next_obs": next_obs, "reward": reward, "done": done}


def main():
    cfg = LearnerConfig()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    replay = collect(2000, gen)
    module = TQCModule(3, 2, cfg)
    learner = Learner(module, cfg)
    for it in range(cfg.iterations):
        idx = torch.randint(0, 2000, (cfg.batch_size,), generator=gen)
        stats = learner.update({k: v[idx] for k, v in replay.items()})
        if it % 100 == 0:
            print(it, {k: round(v, 3) for k, v in stats.items()})
    with torch.no_grad():
        act, _ = module.sample(replay["obs"])
        q = module.quantiles(module.qf, replay["obs"], act).mean().item()
    result = {"mean_q": round(q, 3), "qf_loss": round(stats["qf"], 4)}
    print(result)
    return result


if __name__ == "__main__":
    main()
