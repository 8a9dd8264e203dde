"""Mixture of experts whose balance loss rides along with the activations."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class AddAuxiliaryLoss(torch.autograd.Function):
    """Returns x as it is; in backward the attached scalar gets the gradient it has as a summand of the loss: 1."""

    @staticmethod
    def forward(ctx, x, loss):
        assert loss.numel() == 1
        ctx.dtype = loss.dtype
        ctx.needs_loss = loss.requires_grad
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        grad_loss = None
        if ctx.needs_loss:
            grad_loss = torch.ones((), dtype=ctx.dtype, device=grad_output.device)
        return grad_output, grad_loss


class Router(nn.Module):
    def __init__(self, dim, n_experts, k, alpha):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, dim))
        nn.init.kaiming_uniform_(self.weight, a=5 ** 0.5)
        self.k, self.alpha, self.n = k, alpha, n_experts

    def forward(self, x):
        scores = F.linear(x, self.weight).softmax(-1)
        weight, index = torch.topk(scores, self.k, dim=-1, sorted=False)
        aux = None
        if self.training and self.alpha > 0:
            with torch.no_grad():
                load = F.one_hot(index.flatten(), self.n).float().mean(0) * self.n
            aux = self.alpha * (scores.mean(0) * load).sum()
        return weight, index, aux


class SparseMLP(nn.Module):
    def __init__(self, dim, n_experts=4, k=2, alpha=0.05):
        super().__init__()
        self.gate = Router(dim, n_experts, k, alpha)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))
                                      for _ in range(n_experts)])

    def forward(self, x):
        weight, index, aux = self.gate(x)
        stacked = torch.stack([expert(x) for expert in self.experts], dim=1)
        picked = stacked.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        y = (picked * weight.unsqueeze(-1)).sum(1)
        if aux is not None:
            y = AddAuxiliaryLoss.apply(y, aux)
        return y


class Classifier(nn.Module):
    def __init__(self, dim=12, classes=5):
        super().__init__()
        self.inp = nn.Linear(dim, 24)
        self.moe = SparseMLP(24)
        self.out = nn.Linear(24, classes)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        return self.out(h + self.moe(h))


def main():
    torch.manual_seed(0)
    x = torch.randn(400, 12)
    y = (x @ torch.randn(12, 5)).argmax(1)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for epoch in range(5):
        model.train()
        for i in torch.randperm(400).split(50):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[i]), y[i])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            acc = (model(x).argmax(1) == y).float().mean()
        print(f"epoch {epoch}: accuracy {acc:.3f}")
    return model


if __name__ == "__main__":
    main()
