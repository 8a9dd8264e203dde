"""Stateful GRU forecaster on long series, with point and quantile heads."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class StatefulGRU(nn.Module):
    def __init__(self, n_series, hidden=32):
        super().__init__()
        self.cell = nn.GRU(1, hidden, batch_first=True)
        self.register_buffer("state", torch.zeros(1, n_series, hidden), persistent=False)

    def reset(self):
        self.state = torch.zeros_like(self.state)

    def forward(self, x):
        out, state = self.cell(x, self.state)
        self.state = state.detach()
        return out


class PinballFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, pred, target, quantiles):
        diff = target.unsqueeze(-1) - pred
        ctx.save_for_backward(diff, quantiles)
        return torch.maximum(quantiles * diff, (quantiles - 1) * diff).mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        diff, quantiles = ctx.saved_tensors
        grad = torch.where(diff >= 0, -quantiles, 1 - quantiles) / diff.numel()
        return grad_output * grad, None, None


class Forecaster(nn.Module):
    def __init__(self, n_series, quantiles=(0.1, 0.5, 0.9)):
        super().__init__()
        self.encoder = StatefulGRU(n_series)
        self.point = nn.Linear(32, 1)
        self.quantile = nn.Linear(32, len(quantiles))
        self.register_buffer("q", torch.tensor(quantiles))

    def forward(self, x):
        h = self.encoder(x)
        return self.point(h).squeeze(-1), self.quantile(h)


def make_series(n_series=24, length=481):
    g = torch.Generator().manual_seed(8)
    t = torch.arange(length).float()
    period = torch.rand(n_series, 1, generator=g) * 20 + 10
    base = torch.sin(6.283 * t / period) + 0.4 * torch.sin(6.283 * t / 7)
    return base + 0.2 * torch.randn(n_series, length, generator=g)


def windows(series, size):
    for i in range(0, series.shape[1] - size, size):
        yield series[:, i:i + size].unsqueeze(-1), series[:, i + 1:i + size + 1]


def train_epoch(model, series, opt_encoder, opt_heads, window):
    model.train()
    model.encoder.reset()
    totals = torch.zeros(2)
    for count, (x, y) in enumerate(windows(series, window), 1):
        point, quantile = model(x)
        point_loss = F.mse_loss(point, y)
        quantile_loss = PinballFunction.apply(quantile, y, model.q)
        opt_encoder.zero_grad()
        opt_heads.zero_grad()
        point_loss.backward(retain_graph=True)
        (0.5 * quantile_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt_encoder.step()
        opt_heads.step()
        totals += torch.stack([point_loss, quantile_loss]).detach()
    return (totals / count).tolist()


@torch.no_grad()
def evaluate(model, series, window, warm):
    model.eval()
    model.encoder.reset()
    errors, inside = [], []
    for i, (x, y) in enumerate(windows(series, window)):
        point, quantile = model(x)
        if i >= warm:
            errors.append(F.mse_loss(point, y))
            inside.append(((y > quantile[..., 0]) & (y < quantile[..., -1])).float().mean())
    return torch.stack(errors).mean().item(), torch.stack(inside).mean().item()


def main():
    torch.manual_seed(0)
    series = make_series()
    model = Forecaster(series.shape[0])
    opt_encoder = torch.optim.Adam(model.encoder.parameters(), lr=5e-3)
    heads = list(model.point.parameters()) + list(model.quantile.parameters())
    opt_heads = torch.optim.Adam(heads, lr=1e-2)
    best, best_state = float("inf"), None
    for epoch in range(6):
        point, quantile = train_epoch(model, series[:, :361], opt_encoder, opt_heads, 24)
        mse, coverage = evaluate(model, series, 24, warm=15)
        if mse < best:
            best = mse
            best_state = {k: v.detach().clone() for k, v in model.state_dict().items()}
        print(f"epoch {epoch}  mse {point:.4f}  pinball {quantile:.4f}  "
              f"valid mse {mse:.4f}  coverage {coverage:.2f}")
    model.load_state_dict(best_state)
    print(f"best valid mse {evaluate(model, series, 24, warm=15)[0]:.4f}")
    return model


if __name__ == "__main__":
    main()
