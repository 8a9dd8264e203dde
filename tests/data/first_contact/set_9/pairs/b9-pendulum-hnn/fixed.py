import math

import torch
from torch import nn

PARAMS = {
    "seed": 17,
    "networks": {"hidden_units": 64, "n_hidden": 2},
    "rollout": {"seq_length": 20, "delta_time": 0.1},
    "optimization": {"epochs": 250, "batch_size": 64, "lr": 1e-2},
    "dataset": {"n_train": 512, "n_test": 128},
}


class HamiltonianNet(nn.Module):
    def __init__(self, phase_dim, hidden_units, n_hidden):
        super().__init__()
        layers = [nn.Linear(phase_dim, hidden_units), nn.Softplus()]
        for _ in range(n_hidden - 1):
            layers += [nn.Linear(hidden_units, hidden_units), nn.Softplus()]
        layers.append(nn.Linear(hidden_units, 1, bias=False))
        self.layers = nn.Sequential(*layers)

    def forward(self, q, p):
        return self.layers(torch.cat([q, p], dim=-1)).squeeze(-1)


class HamiltonianField(nn.Module):
    def __init__(self, hnn):
        super().__init__()
        self.hnn = hnn

    def forward(self, q, p):
        with torch.enable_grad():
            q = q if q.requires_grad else q.detach().requires_grad_(True)
            p = p if p.requires_grad else p.detach().requires_grad_(True)
            energy = self.hnn(q, p).sum()
            dq, dp = torch.autograd.grad(energy, [q, p], create_graph=self.training)
        return dp, -dq


class Leapfrog:
    def __init__(self, delta_time):
        self.delta_time = delta_time

    def step(self, field, q, p):
        half = 0.5 * self.delta_time
        _, dp = field(q, p)
        p = p + half * dp
        dq, _ = field(q, p)
        q = q + self.delta_time * dq
        _, dp = field(q, p)
        return q, p + half * dp


class Pendulum:
    def energy(self, q, p):
        return 0.5 * p.pow(2).squeeze(-1) + 1.0 - torch.cos(q).squeeze(-1)

    def derivatives(self, q, p):
        return p, -torch.sin(q)

    def sample(self, n, noise=0.02):
        q = (2 * torch.rand(n, 1) - 1) * 0.7 * math.pi
        p = 2 * torch.rand(n, 1) - 1
        dq, dp = self.derivatives(q, p)
        return q, p, dq + noise * torch.randn_like(dq), dp + noise * torch.randn_like(dp)


class Trainer:
    def __init__(self, params):
        self.params = params
        torch.manual_seed(params["seed"])
        self.system = Pendulum()
        net = HamiltonianNet(2, **params["networks"])
        self.field = HamiltonianField(net)
        opt = params["optimization"]
        self.optimizer = torch.optim.Adam(net.parameters(), lr=opt["lr"])
        self.train_data = self.system.sample(params["dataset"]["n_train"])
        self.test_data = self.system.sample(params["dataset"]["n_test"], noise=0.0)
        self.integrator = Leapfrog(params["rollout"]["delta_time"])

    def training_step(self, batch):
        q, p, dq, dp = batch
        pred_dq, pred_dp = self.field(q, p)
        loss = (pred_dq - dq).pow(2).mean() + (pred_dp - dp).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self):
        self.field.train()
        size = self.params["optimization"]["batch_size"]
        for epoch in range(self.params["optimization"]["epochs"]):
            index = torch.randint(len(self.train_data[0]), (size,))
            loss = self.training_step([t[index] for t in self.train_data])
            if (epoch + 1) % 50 == 0:
                print(f"epoch {epoch + 1} loss {loss:.5f} test {self.test():.5f}")
                self.field.train()

    def test(self):
        self.field.eval()
        q, p, dq, dp = self.test_data
        pred_dq, pred_dp = self.field(q, p)
        return ((pred_dq - dq).pow(2).mean() + (pred_dp - dp).pow(2).mean()).item()

    def energy_drift(self):
        self.field.eval()
        q, p = self.test_data[0][:16], self.test_data[1][:16]
        start = self.system.energy(q, p)
        for _ in range(self.params["rollout"]["seq_length"]):
            q, p = self.integrator.step(self.field, q, p)
            q, p = q.detach(), p.detach()
        return (self.system.energy(q, p) - start).abs().mean().item()


def main():
    trainer = Trainer(PARAMS)
    trainer.fit()
    print(f"energy drift {trainer.energy_drift():.4f}")


if __name__ == "__main__":
    main()
