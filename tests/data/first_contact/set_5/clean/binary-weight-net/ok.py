"""Binary weights: forward and backward run on the signs, the step is taken on the real weights."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class BinOp:
    def __init__(self, model):
        linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.target = [m.weight for m in linears[1:-1]]
        self.saved = [w.detach().clone() for w in self.target]

    @torch.no_grad()
    def binarize(self):
        for w, kept in zip(self.target, self.saved):
            w.sub_(w.mean(1, keepdim=True)).clamp_(-1.0, 1.0)
            kept.copy_(w)
            alpha = w.abs().mean(1, keepdim=True)
            w.copy_(w.sign() * alpha)

    @torch.no_grad()
    def restore(self):
        for w, kept in zip(self.target, self.saved):
            w.copy_(kept)

    @torch.no_grad()
    def update_gradient(self):
        """Straight through the sign inside [-1, 1], plus the part that goes through the scale."""
        for w in self.target:
            n = w.shape[1]
            alpha = w.abs().mean(1, keepdim=True)
            mask = (w.abs() <= 1.0).to(w.dtype)
            through_sign = w.grad * alpha * mask
            through_scale = w.sign() * (w.grad * w.sign()).sum(1, keepdim=True) / n
            w.grad.copy_(through_sign + through_scale)


class MLP(nn.Module):
    def __init__(self, dims=(16, 48, 48, 48, 4)):
        super().__init__()
        blocks = []
        for i, (a, b) in enumerate(zip(dims, dims[1:])):
            blocks.append(nn.Linear(a, b, bias=i in (0, len(dims) - 2)))
            if i < len(dims) - 2:
                blocks += [nn.BatchNorm1d(b), nn.Hardtanh()]
        self.net = nn.Sequential(*blocks)

    def forward(self, x):
        return self.net(x)


def blobs(n, seed):
    centres = torch.randn(4, 16, generator=torch.Generator().manual_seed(42))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    return centres[y] + 1.2 * torch.randn(n, 16, generator=g), y


def train_epoch(model, bin_op, optimizer, x, y):
    model.train()
    for i in torch.randperm(len(x)).split(32):
        bin_op.binarize()
        loss = F.cross_entropy(model(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        bin_op.restore()
        bin_op.update_gradient()
        optimizer.step()


def test(model, bin_op, x, y):
    model.eval()
    bin_op.binarize()
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().item()
    bin_op.restore()
    return acc


def main():
    torch.manual_seed(0)
    x, y = blobs(320, 0)
    x_test, y_test = blobs(160, 1)
    model = MLP()
    bin_op = BinOp(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(6):
        train_epoch(model, bin_op, optimizer, x, y)
        print(f"epoch {epoch}: accuracy of the binary network {test(model, bin_op, x_test, y_test):.3f}")
    return model


if __name__ == "__main__":
    main()
