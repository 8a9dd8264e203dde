import torch
import torch.nn.functional as F
from torch import nn


class TGNMemory(nn.Module):
    def __init__(self, num_nodes, raw_dim, memory_dim):
        super().__init__()
        self.memory_dim = memory_dim
        self.gru = nn.GRUCell(memory_dim + raw_dim + 1, memory_dim)
        self.register_buffer("memory", torch.zeros(num_nodes, memory_dim))
        self.register_buffer("last_update", torch.zeros(num_nodes))
        self.messages = {}

    def reset_state(self):
        self.memory.zero_()
        self.last_update.zero_()
        self.messages.clear()

    def detach(self):
        self.memory.detach_()

    def compute(self, nodes):
        rows = []
        for node in nodes.tolist():
            h = self.memory[node]
            if node in self.messages:
                other, feature, t = self.messages[node]
                delta = (t - self.last_update[node]).view(1)
                message = torch.cat([self.memory[other], feature, delta])
                h = self.gru(message[None], h[None]).squeeze(0)
            rows.append(h)
        return torch.stack(rows)

    def flush(self, nodes, updated):
        memory = self.memory.clone()
        last_update = self.last_update.clone()
        for row, node in enumerate(nodes.tolist()):
            if node in self.messages:
                memory[node] = updated[row]
                last_update[node] = self.messages.pop(node)[2]
        self.memory = memory
        self.last_update = last_update

    def store(self, src, dst, t, features):
        for s, d, time, feature in zip(src.tolist(), dst.tolist(), t, features):
            self.messages[s] = (d, feature, time)
            self.messages[d] = (s, feature, time)


class LinkPredictor(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.src = nn.Linear(dim, dim)
        self.dst = nn.Linear(dim, dim)
        self.final = nn.Linear(dim, 1)

    def forward(self, a, b):
        return self.final(F.relu(self.src(a) + self.dst(b))).squeeze(-1)


class Model(nn.Module):
    def __init__(self, num_nodes, raw_dim=4, dim=24):
        super().__init__()
        self.memory = TGNMemory(num_nodes, raw_dim, dim)
        self.embed = nn.Embedding(num_nodes, dim)
        self.link = LinkPredictor(dim)

    def forward(self, src, dst, neg):
        nodes, inverse = torch.unique(torch.cat([src, dst, neg]), return_inverse=True)
        updated = self.memory.compute(nodes)
        z = updated + self.embed(nodes)
        a, b, c = z[inverse].chunk(3)
        return self.link(a, b), self.link(a, c), nodes, updated


def make_events(num_nodes, n):
    group = torch.arange(num_nodes) % 4
    src = torch.randint(num_nodes, (n,))
    dst = torch.empty(n, dtype=torch.long)
    for i, s in enumerate(src.tolist()):
        pool = (group == group[s]).nonzero().flatten()
        dst[i] = pool[torch.randint(len(pool), (1,))]
    features = F.one_hot(group[src], 4).float() + 0.1 * torch.randn(n, 4)
    return src, dst, torch.cumsum(torch.rand(n) * 0.1, 0), features


def run(model, events, num_nodes, optimizer=None, batch_size=40):
    src, dst, t, features = events
    model.train(optimizer is not None)
    total, correct = 0.0, 0.0
    for index in torch.arange(len(src)).split(batch_size):
        neg = torch.randint(num_nodes, (len(index),))
        with torch.set_grad_enabled(optimizer is not None):
            pos_out, neg_out, nodes, updated = model(src[index], dst[index], neg)
            loss = F.softplus(-pos_out).mean() + F.softplus(neg_out).mean()
        model.memory.flush(nodes, updated)
        model.memory.store(src[index], dst[index], t[index], features[index])
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.memory.detach()
        total += loss.item() * len(index)
        correct += (pos_out > neg_out).float().sum().item()
    return total / len(src), correct / len(src)


def main():
    torch.manual_seed(10)
    num_nodes = 32
    events = make_events(num_nodes, 480)
    train = [e[:360] for e in events]
    valid = [e[360:] for e in events]
    model = Model(num_nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(4):
        model.memory.reset_state()
        train_loss, train_acc = run(model, train, num_nodes, optimizer)
        valid_loss, valid_acc = run(model, valid, num_nodes)
        print(
            f"epoch {epoch} loss {train_loss:.4f} acc {train_acc:.3f} "
            f"valid {valid_loss:.4f} acc {valid_acc:.3f}"
        )


if __name__ == "__main__":
    main()
