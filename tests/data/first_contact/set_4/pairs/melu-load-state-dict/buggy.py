"""Meta-learned user preference estimator: local update on a user's support set, global update on the query set."""
import argparse
import copy
from collections import OrderedDict

import torch
from torch import nn
import torch.nn.functional as F


def get_args(argv=()):
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=24)
    parser.add_argument("--local-lr", type=float, default=0.15)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--inner", type=int, default=2)
    parser.add_argument("--users-per-batch", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--seed", type=int, default=11)
    return parser.parse_args(list(argv))


class PreferenceEstimator(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.item_embedding = nn.Linear(5, hidden)
        self.fc1 = nn.Linear(hidden, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.linear_out = nn.Linear(hidden, 1)

    def forward(self, x):
        h = torch.tanh(self.item_embedding(x))
        h = torch.tanh(self.fc1(h))
        h = torch.tanh(self.fc2(h))
        return self.linear_out(h).squeeze(-1)


class UserTasks:
    """Every user rates items by a hidden taste: ratings are a sine of the items along the taste."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def sample(self, support=10, query=10):
        taste = torch.randn(5, generator=self.generator)
        taste = taste / taste.norm()
        phase = 3.0 * torch.rand(1, generator=self.generator)
        x = torch.randn(support + query, 5, generator=self.generator)
        y = torch.sin(2.0 * x @ taste + phase)
        return x[:support], y[:support], x[support:], y[support:]


class MeLU:
    def __init__(self, args):
        self.args = args
        self.model = PreferenceEstimator(args.hidden)
        self.local_update_target = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias",
                                    "linear_out.weight", "linear_out.bias"}
        self.meta_optim = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.store_parameters()

    def store_parameters(self):
        self.keep_weight = copy.deepcopy(self.model.state_dict())

    def query_prediction(self, support_x, support_y, query_x, training=True):
        weights = OrderedDict(self.model.named_parameters())
        for _ in range(self.args.inner):
            prediction = torch.func.functional_call(self.model, weights, (support_x,))
            loss = F.mse_loss(prediction, support_y)
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=training)
            fast = OrderedDict()
            for (name, weight), grad in zip(weights.items(), grads):
                if name in self.local_update_target:
                    fast[name] = weight - self.args.local_lr * grad
                else:
                    fast[name] = weight
            weights = fast
        self.model.load_state_dict(weights)
        with torch.set_grad_enabled(training):
            return self.model(query_x)

    def global_update(self, tasks):
        self.meta_optim.zero_grad()
        total = 0.0
        for support_x, support_y, query_x, query_y in tasks:
            prediction = self.query_prediction(support_x, support_y, query_x)
            loss = F.mse_loss(prediction, query_y) / len(tasks)
            loss.backward()
            self.model.load_state_dict(self.keep_weight)
            total += loss.item()
        norm = torch.stack([p.grad.norm() for p in self.model.parameters()]).norm().item()
        self.meta_optim.step()
        self.store_parameters()
        return total, norm

    def evaluate(self, tasks):
        total = 0.0
        for support_x, support_y, query_x, query_y in tasks:
            prediction = self.query_prediction(support_x, support_y, query_x, training=False)
            self.model.load_state_dict(self.keep_weight)
            total += F.mse_loss(prediction, query_y).item() / len(tasks)
        return total


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    melu = MeLU(args)
    train_users, test_users = UserTasks(args.seed), UserTasks(args.seed + 1)
    held_out = [test_users.sample() for _ in range(20)]
    norms = []
    for iteration in range(args.iterations):
        loss, norm = melu.global_update([train_users.sample() for _ in range(args.users_per_batch)])
        norms.append(norm)
        if iteration % 20 == 0:
            print(f"iteration {iteration} query loss {loss:.4f}")
    test = melu.evaluate(held_out)
    print(f"held out users {test:.4f}")
    return {"first_meta_grad_norm": norms[0], "test": test}


if __name__ == "__main__":
    main()
