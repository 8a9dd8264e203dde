import copy

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, dim=12, hidden=32, classes=3):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.bn1 = nn.BatchNorm1d(hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.fc2(torch.relu(self.bn1(self.fc1(x))))


class LocalUpdate:
    def __init__(self, data, local_ep, local_bs, lr):
        self.data = data
        self.local_ep = local_ep
        self.local_bs = local_bs
        self.lr = lr
        self.loss_func = nn.CrossEntropyLoss()

    def train(self, net):
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=self.lr)
        epoch_loss = []
        x, y = self.data
        for _ in range(self.local_ep):
            for index in torch.randperm(len(x)).split(self.local_bs):
                if len(index) < 2:
                    continue
                net.zero_grad()
                loss = self.loss_func(net(x[index]), y[index])
                loss.backward()
                optimizer.step()
                epoch_loss.append(loss.item())
        return net.state_dict(), sum(epoch_loss) / len(epoch_loss)


def FedAvg(weights, sizes):
    total = float(sum(sizes))
    averaged = copy.deepcopy(weights[0])
    for key, value in averaged.items():
        if not value.is_floating_point():
            averaged[key] = torch.stack([w[key] for w in weights]).max()
            continue
        averaged[key] = sum(w[key] * (n / total) for w, n in zip(weights, sizes))
    return averaged


class ServerMomentum:
    def __init__(self, state, beta=0.5):
        self.beta = beta
        self.velocity = {k: torch.zeros_like(v) for k, v in state.items() if v.is_floating_point()}

    def apply(self, current, averaged):
        result = {}
        for key, value in averaged.items():
            if key not in self.velocity:
                result[key] = value
                continue
            self.velocity[key] = self.beta * self.velocity[key] + (value - current[key])
            if "running" in key:
                result[key] = value
            else:
                result[key] = current[key] + self.velocity[key]
        return result


@torch.no_grad()
def test_img(net, data):
    net.eval()
    logits = net(data[0])
    return nn.functional.cross_entropy(logits, data[1]).item(), (
        logits.argmax(1) == data[1]
    ).float().mean().item()


def make_clients(n_clients, dim=12, classes=3):
    centers = torch.randn(classes, dim)
    clients = []
    for _ in range(n_clients):
        n = int(np.random.randint(30, 90))
        y = torch.from_numpy(np.random.choice(classes, n, p=np.random.dirichlet([1.0] * classes)))
        clients.append((centers[y] + torch.randn(n, dim), y))
    y = torch.randint(classes, (300,))
    return clients, (centers[y] + torch.randn(300, dim), y)


def main():
    np.random.seed(3)
    torch.manual_seed(3)
    clients, test = make_clients(8)
    net_glob = Net()
    w_glob = copy.deepcopy(net_glob.state_dict())
    momentum = ServerMomentum(w_glob)
    for rnd in range(10):
        w_locals, loss_locals, sizes = [], [], []
        for idx in np.random.choice(len(clients), 4, replace=False):
            local = LocalUpdate(clients[idx], local_ep=2, local_bs=16, lr=0.05)
            w, loss = local.train(copy.deepcopy(net_glob))
            w_locals.append(w)
            loss_locals.append(loss)
            sizes.append(len(clients[idx][0]))
        w_glob = momentum.apply(w_glob, FedAvg(w_locals, sizes))
        net_glob.load_state_dict(w_glob)
        test_loss, acc = test_img(net_glob, test)
        print(f"round {rnd} train {np.mean(loss_locals):.4f} test {test_loss:.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
