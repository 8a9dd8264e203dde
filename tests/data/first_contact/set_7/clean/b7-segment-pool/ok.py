import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SegmentMax(Function):
    @staticmethod
    def forward(ctx, x, batch, size):
        index = batch.unsqueeze(1).expand_as(x)
        out = x.new_full((size, x.size(1)), float("-inf")).scatter_reduce(0, index, x, "amax")
        rows = torch.arange(x.size(0)).unsqueeze(1).expand_as(x)
        hit = x == out.gather(0, index)
        first = torch.where(hit, rows, torch.full_like(rows, x.size(0)))
        arg = torch.full((size, x.size(1)), x.size(0)).scatter_reduce(0, index, first, "amin")
        ctx.save_for_backward(arg)
        ctx.rows = x.size(0)
        ctx.mark_non_differentiable(arg)
        return out, arg

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, _):
        (arg,) = ctx.saved_tensors
        grad = grad_out.new_zeros(ctx.rows, grad_out.size(1))
        grad.scatter_(0, arg, grad_out)
        return grad, None, None


class ScaleGrad(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor if ctx.needs_input_grad[0] else None, None


class GINLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.BatchNorm1d(2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, edges):
        agg = torch.zeros_like(x)
        agg = agg.index_add(0, edges[1], x[edges[0]])
        return F.relu(self.mlp((1 + self.eps) * x + agg))


class GraphClassifier(nn.Module):
    def __init__(self, num_types=5, dim=24, layers=3, num_classes=2, num_domains=2):
        super().__init__()
        self.embed = nn.Embedding(num_types, dim)
        self.layers = nn.ModuleList(GINLayer(dim) for _ in range(layers))
        self.readouts = nn.ModuleList(nn.Linear(dim, num_classes) for _ in range(layers + 1))
        self.domain = nn.Linear(dim, num_domains)

    def forward(self, types, edges, batch, size, adversarial):
        x = self.embed(types)
        pooled, arg = SegmentMax.apply(x, batch, size)
        logits = self.readouts[0](pooled)
        for layer, readout in zip(self.layers, self.readouts[1:]):
            x = layer(x, edges)
            pooled, arg = SegmentMax.apply(x, batch, size)
            logits = logits + readout(pooled)
        return logits, self.domain(ScaleGrad.apply(pooled, -adversarial)), arg


def random_graph(generator, label, domain):
    n = int(torch.randint(8, 14, (1,), generator=generator))
    types = torch.randint(0, 4 if domain == 0 else 5, (n,), generator=generator)
    density = 0.15 if label == 0 else 0.3
    upper = torch.triu(torch.rand(n, n, generator=generator) < density, 1)
    return types, torch.nonzero(upper | upper.t()).t()


def collate(graphs):
    types, edges, batch, offset = [], [], [], 0
    for k, (t, e) in enumerate(graphs):
        types.append(t)
        edges.append(e + offset)
        batch.append(torch.full((len(t),), k))
        offset += len(t)
    return torch.cat(types), torch.cat(edges, 1), torch.cat(batch), len(graphs)


def make_batch(n, generator):
    labels = torch.randint(0, 2, (n,), generator=generator)
    domains = torch.randint(0, 2, (n,), generator=generator)
    graphs = [random_graph(generator, int(l), int(d)) for l, d in zip(labels, domains)]
    return collate(graphs), labels, domains


def main():
    torch.manual_seed(14)
    gen = torch.Generator().manual_seed(15)
    train = [make_batch(32, gen) for _ in range(12)]
    test = make_batch(128, gen)
    model = GraphClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    usage = torch.zeros(1)
    for epoch in range(6):
        model.train()
        running = 0.0
        for graphs, labels, domains in train:
            logits, dom, arg = model(*graphs, adversarial=0.1)
            loss = F.cross_entropy(logits, labels) + F.cross_entropy(dom, domains)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
            usage = 0.9 * usage + 0.1 * len(torch.unique(arg)) / len(graphs[0])
        model.eval()
        with torch.no_grad():
            graphs, labels, _ = test
            acc = (model(*graphs, adversarial=0.0)[0].argmax(1) == labels).float().mean().item()
        print(f"epoch {epoch} loss {running / len(train):.4f} nodes used {usage.item():.2f} test acc {acc:.3f}")


if __name__ == "__main__":
    main()
