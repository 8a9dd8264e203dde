import numpy as np
import torch
from torch import nn
from torch.autograd import Function


def compute_softdtw(D, gamma):
    B, N, M = D.shape
    R = np.full((B, N + 2, M + 2), 1e8)
    R[:, 0, 0] = 0
    for j in range(1, M + 1):
        for i in range(1, N + 1):
            r = -np.stack([R[:, i - 1, j - 1], R[:, i - 1, j], R[:, i, j - 1]]) / gamma
            rmax = r.max(axis=0)
            rsum = np.exp(r - rmax).sum(axis=0)
            R[:, i, j] = D[:, i - 1, j - 1] - gamma * (np.log(rsum) + rmax)
    return R


def compute_softdtw_backward(D_, R, gamma):
    B, N, M = D_.shape
    R = R.copy()
    D = np.zeros((B, N + 2, M + 2))
    E = np.zeros((B, N + 2, M + 2))
    D[:, 1 : N + 1, 1 : M + 1] = D_
    E[:, -1, -1] = 1
    R[:, :, -1] = -1e8
    R[:, -1, :] = -1e8
    R[:, -1, -1] = R[:, -2, -2]
    for j in range(M, 0, -1):
        for i in range(N, 0, -1):
            a = np.exp((R[:, i + 1, j] - R[:, i, j] - D[:, i + 1, j]) / gamma)
            b = np.exp((R[:, i, j + 1] - R[:, i, j] - D[:, i, j + 1]) / gamma)
            c = np.exp((R[:, i + 1, j + 1] - R[:, i, j] - D[:, i + 1, j + 1]) / gamma)
            E[:, i, j] = E[:, i + 1, j] * a + E[:, i, j + 1] * b + E[:, i + 1, j + 1] * c
    return E[:, 1 : N + 1, 1 : M + 1]


class _SoftDTW(Function):
    @staticmethod
    def forward(ctx, D, gamma):
        R = compute_softdtw(D.detach().cpu().numpy(), gamma)
        R = torch.from_numpy(R).to(D)
        ctx.save_for_backward(D, R)
        ctx.gamma = gamma
        return R[:, -2, -2].clone()

    @staticmethod
    def backward(ctx, grad_output):
        D, R = ctx.saved_tensors
        E = compute_softdtw_backward(D.cpu().double().numpy(), R.cpu().double().numpy(), ctx.gamma)
        E = torch.from_numpy(np.ascontiguousarray(E)).to(grad_output)
        return grad_output * E, None


class SoftDTW(nn.Module):
    def __init__(self, gamma=1.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, x, y):
        D = (x[:, :, None] - y[:, None, :]).pow(2)
        return _SoftDTW.apply(D, self.gamma)


def target(D):
    return _SoftDTW.apply(D, 0.5)


def make_inputs():
    generator = torch.Generator().manual_seed(11)
    D = torch.rand(3, 3, 3, generator=generator, dtype=torch.float64) + 0.2
    return (D.requires_grad_(),)


class Seq2Seq(nn.Module):
    def __init__(self, hidden=24, horizon=12):
        super().__init__()
        self.horizon = horizon
        self.encoder = nn.GRU(1, hidden, batch_first=True)
        self.decoder = nn.GRUCell(1, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, history):
        _, h = self.encoder(history[..., None])
        h = h.squeeze(0)
        value = history[:, -1:]
        outputs = []
        for _ in range(self.horizon):
            h = self.decoder(value, h)
            value = self.out(h)
            outputs.append(value)
        return torch.cat(outputs, dim=1)


def sample_series(n, history=18, horizon=12):
    t = torch.arange(history + horizon).float()
    phase = torch.rand(n, 1) * 6.28
    period = 8 + 8 * torch.rand(n, 1)
    noisy = (torch.rand(n, 1) < 0.4).float()
    clean = torch.sin(2 * np.pi * t / period + phase)
    series = clean + noisy * 1.2 * torch.randn(n, history + horizon) + 0.05 * torch.randn_like(clean)
    weight = torch.where(noisy.squeeze(1) > 0, 0.05, 1.0)
    return series[:, :history], series[:, history:], clean[:, history:], weight


def main():
    torch.manual_seed(21)
    model = Seq2Seq()
    criterion = SoftDTW(gamma=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    batch_size = 12
    for step in range(80):
        history, future, _, weight = sample_series(batch_size)
        prediction = model(history)
        distances = criterion(prediction, future)
        loss = (weight * distances).sum() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 19:
            with torch.no_grad():
                history, _, clean, weight = sample_series(64)
                keep = weight > 0.5
                mse = (model(history) - clean)[keep].pow(2).mean().item()
            print(f"step {step + 1} loss {loss.item():.4f} val mse {mse:.4f}")


if __name__ == "__main__":
    main()
