"""Node classification on a random graph with one propagation cell used several times and a distilled student."""
import torch
import torch.nn.functional as F
from torch import nn


class GatedCell(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(2 * dim, dim)

    def forward(self, adj, h):
        m = torch.relu(self.message(adj @ h))
        z = torch.sigmoid(self.gate(torch.cat([h, m], 1)))
        return z * h + (1 - z) * m


class RecurrentGNN(nn.Module):
    """The same cell runs at every hop, as in gated graph networks: the number of hops adds no parameters."""

    def __init__(self, in_dim, dim, n_classes, hops=4):
        super().__init__()
        self.encode = nn.Linear(in_dim, dim)
        cell = GatedCell(dim)
        self.cells = nn.ModuleList([cell] * hops)
        self.decode = nn.Linear(dim, n_classes)
        self.teleport = nn.Parameter(torch.tensor(-2.0))

    def forward(self, adj, x):
        h0 = h = torch.relu(self.encode(x))
        keep = torch.sigmoid(self.teleport)
        for cell in self.cells:
            h = (1 - keep) * cell(adj, F.dropout(h, 0.2, self.training)) + keep * h0
        return self.decode(h)


class Activations:
    def __init__(self, module):
        self.values = []
        self.handle = module.register_forward_hook(self.record)

    def record(self, module, inputs, output):
        self.values.append(output.detach().norm(dim=1).mean().item())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.handle.remove()


def make_graph(n=120, n_classes=3, in_dim=10, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, n_classes, (n,), generator=g)
    same = labels[:, None] == labels[None]
    adj = (torch.rand(n, n, generator=g) < torch.where(same, 0.08, 0.015)).float()
    adj = ((adj + adj.t() + torch.eye(n)) > 0).float()
    degree = adj.sum(1).rsqrt()
    centers = torch.randn(n_classes, in_dim, generator=g)
    x = 0.5 * centers[labels] + torch.randn(n, in_dim, generator=g)
    order = torch.randperm(n, generator=g)
    return degree[:, None] * adj * degree[None], x, labels, order[:45], order[45:]


def train_teacher(adj, x, labels, train, steps=80):
    model = RecurrentGNN(x.shape[1], 16, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)
    for step in range(steps):
        model.train()
        loss = F.cross_entropy(model(adj, x)[train], labels[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())
        if step % 20 == 0:
            model.eval()
            with torch.no_grad(), Activations(model.cells[0]) as spy:
                model(adj, x)
            print(f"step {step} loss {loss.item():.4f} cell norms {[round(v, 2) for v in spy.values]}")
    return model.eval().requires_grad_(False)


def distil(teacher, adj, x, labels, train, steps=80, temperature=2.0):
    student = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    soft = F.softmax(teacher(adj, x) / temperature, dim=1)
    for _ in range(steps):
        logits = student(x)
        imitation = F.kl_div(F.log_softmax(logits / temperature, 1), soft, reduction="batchmean")
        loss = temperature**2 * imitation + F.cross_entropy(logits[train], labels[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return student.eval()


def main():
    torch.manual_seed(0)
    adj, x, labels, train, test = make_graph()
    teacher = train_teacher(adj, x, labels, train)
    student = distil(teacher, adj, x, labels, train)
    with torch.no_grad():
        t = (teacher(adj, x)[test].argmax(1) == labels[test]).float().mean().item()
        s = (student(x)[test].argmax(1) == labels[test]).float().mean().item()
    print(f"teacher {t:.3f} student {s:.3f}")
    return teacher


if __name__ == "__main__":
    main()
