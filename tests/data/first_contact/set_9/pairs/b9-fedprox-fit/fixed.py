import random
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Args:
    client_num: int = 6
    join_ratio: float = 0.5
    global_epoch: int = 12
    local_epoch: int = 4
    batch_size: int = 16
    local_lr: float = 0.05
    mu: float = 1.0
    seed: int = 42


def fix_random_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def build_partitions(args, dim=10, classes=4, per_client=80):
    prototypes = torch.randn(classes, dim) * 1.5
    partitions = []
    for _ in range(args.client_num):
        proportions = np.random.dirichlet([0.3] * classes)
        labels = torch.from_numpy(np.random.choice(classes, per_client, p=proportions))
        shift = torch.randn(1, dim) * 0.5
        features = prototypes[labels] + shift + torch.randn(per_client, dim)
        partitions.append((features, labels))
    return partitions


class DecoupledModel(nn.Module):
    def __init__(self, dim=10, hidden=32, classes=4):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU())
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.classifier(self.base(x))


class FedAvgClient:
    def __init__(self, args, partitions):
        self.args = args
        self.partitions = partitions
        self.model = DecoupledModel()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.local_lr)
        self.criterion = nn.CrossEntropyLoss()
        self.client_id = None

    def set_parameters(self, parameters):
        self.model.load_state_dict(parameters)

    def loader(self):
        x, y = self.partitions[self.client_id]
        order = torch.randperm(len(x))
        for start in range(0, len(x), self.args.batch_size):
            index = order[start : start + self.args.batch_size]
            yield x[index], y[index]

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, y = self.partitions[self.client_id]
        logit = self.model(x)
        return self.criterion(logit, y).item(), (logit.argmax(1) == y).float().mean().item()

    def train(self, client_id, parameters):
        self.client_id = client_id
        self.set_parameters(parameters)
        before = self.evaluate()
        self.fit()
        after = self.evaluate()
        weight = len(self.partitions[client_id][0])
        updated = OrderedDict((k, v.clone()) for k, v in self.model.state_dict().items())
        return updated, weight, before, after

    def fit(self):
        self.model.train()
        for _ in range(self.args.local_epoch):
            for x, y in self.loader():
                loss = self.criterion(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


class FedProxClient(FedAvgClient):
    def fit(self):
        self.model.train()
        global_params = [w.detach().clone() for w in self.model.parameters()]
        for _ in range(self.args.local_epoch):
            for x, y in self.loader():
                logit = self.model(x)
                loss = self.criterion(logit, y)
                self.optimizer.zero_grad()
                loss.backward()
                for w, w_t in zip(self.model.parameters(), global_params):
                    if w.requires_grad:
                        w.grad.data += self.args.mu * (w.data - w_t.data)
                self.optimizer.step()


class FedProxServer:
    def __init__(self, args):
        self.args = args
        self.partitions = build_partitions(args)
        self.client = FedProxClient(args, self.partitions)
        self.global_params = OrderedDict(
            (k, v.clone()) for k, v in DecoupledModel().state_dict().items()
        )

    def aggregate(self, cache):
        total = sum(weight for _, weight in cache)
        for key in self.global_params:
            self.global_params[key] = sum(
                params[key] * (weight / total) for params, weight in cache
            )

    def train(self):
        for epoch in range(self.args.global_epoch):
            selected = random.sample(
                range(self.args.client_num), int(self.args.client_num * self.args.join_ratio)
            )
            cache, accuracies = [], []
            for client_id in selected:
                params, weight, before, after = self.client.train(client_id, self.global_params)
                cache.append((params, weight))
                accuracies.append((before[1], after[1]))
            self.aggregate(cache)
            b, a = np.mean(accuracies, axis=0)
            print(f"round {epoch:2d} clients {selected} before {b:.3f} after {a:.3f}")


def main():
    args = Args()
    fix_random_seed(args.seed)
    FedProxServer(args).train()


if __name__ == "__main__":
    main()
