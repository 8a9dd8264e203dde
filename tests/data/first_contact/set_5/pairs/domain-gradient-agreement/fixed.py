"""Domain generalisation: agree on the gradients of the training environments."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import autograd


DEFAULTS = dict(lr=1e-2, penalty=20.0, steps=60, batch=48, dim=8, classes=3, environments=3)


class Algorithm(nn.Module):
    def __init__(self, hparams):
        super().__init__()
        self.hparams = hparams

    def update(self, minibatches):
        raise NotImplementedError

    def predict(self, x):
        raise NotImplementedError


class ERM(Algorithm):
    def __init__(self, hparams):
        super().__init__(hparams)
        self.featurizer = nn.Sequential(nn.Linear(hparams["dim"], 24), nn.Tanh())
        self.classifier = nn.Linear(24, hparams["classes"])
        self.network = nn.Sequential(self.featurizer, self.classifier)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=hparams["lr"])

    def predict(self, x):
        return self.network(x)


class GradientAlignment(ERM):
    """Inter-environmental gradient alignment: the variance of the gradients is part of the objective."""

    def update(self, minibatches):
        total_loss = 0.0
        grads = []
        for x, y in minibatches:
            env_loss = F.cross_entropy(self.predict(x), y)
            total_loss = total_loss + env_loss
            grads.append(autograd.grad(env_loss, self.network.parameters(), create_graph=True))

        mean_loss = total_loss / len(minibatches)
        mean_grad = autograd.grad(mean_loss, self.network.parameters(), create_graph=True)

        penalty_value = 0.0
        for grad in grads:
            for g, mean_g in zip(grad, mean_grad):
                penalty_value = penalty_value + (g - mean_g).pow(2).sum()

        objective = mean_loss + self.hparams["penalty"] * penalty_value
        self.optimizer.zero_grad()
        objective.backward()
        self.optimizer.step()
        return {"loss": mean_loss.item(), "penalty": penalty_value.item()}


class Environments:
    """The same causal features everywhere, and a shortcut whose reliability depends on the environment."""

    def __init__(self, hparams, seed=0):
        self.hp = hparams
        self.g = torch.Generator().manual_seed(seed)
        self.centres = torch.randn(hparams["classes"], hparams["dim"] - hparams["classes"], generator=self.g)

    def batch(self, reliability):
        hp = self.hp
        y = torch.randint(hp["classes"], (hp["batch"],), generator=self.g)
        noise = torch.randn(hp["batch"], self.centres.shape[1], generator=self.g)
        cue = torch.where(torch.rand(hp["batch"], generator=self.g) < reliability, y,
                          torch.randint(hp["classes"], (hp["batch"],), generator=self.g))
        return torch.cat([self.centres[y] + noise, 2.0 * F.one_hot(cue, hp["classes"]).float()], 1), y

    def minibatches(self):
        return [self.batch(r) for r in torch.linspace(0.5, 0.95, self.hp["environments"]).tolist()]


def run(hparams):
    torch.manual_seed(4)
    environments = Environments(hparams)
    algorithm = GradientAlignment(hparams)
    rows = [algorithm.update(environments.minibatches()) for _ in range(hparams["steps"])]
    return algorithm, rows


def main():
    algorithm, rows = run(dict(DEFAULTS))
    for i in (0, len(rows) // 2, len(rows) - 1):
        print(i, {k: round(v, 4) for k, v in rows[i].items()})
    return algorithm, rows


if __name__ == "__main__":
    main()
