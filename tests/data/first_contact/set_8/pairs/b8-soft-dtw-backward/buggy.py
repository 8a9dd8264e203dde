"""Spectrogram decoder that is compared with its target by soft dynamic time warping."""
import numpy as np
import torch
from torch import nn

BIG = 1e10


def soft_min(values, gamma):
    z = -np.asarray(values) / gamma
    top = z.max()
    return -gamma * (np.log(np.exp(z - top).sum()) + top)


def accumulate(D, gamma, warp):
    B, N, M = D.shape
    R = np.full((B, N + 2, M + 2), BIG)
    R[:, 0, 0] = 0.0
    for b in range(B):
        for j in range(1, M + 1):
            for i in range(1, N + 1):
                options = (R[b, i - 1, j - 1], R[b, i - 1, j] + warp, R[b, i, j - 1] + warp)
                R[b, i, j] = D[b, i - 1, j - 1] + soft_min(options, gamma)
    return R


def accumulate_backward(D_, R, gamma, warp):
    B, N, M = D_.shape
    D = np.zeros((B, N + 2, M + 2))
    D[:, 1 : N + 1, 1 : M + 1] = D_
    E = np.zeros((B, N + 2, M + 2))
    E[:, -1, -1] = 1.0
    R = R.copy()
    R[:, :, -1] = -BIG
    R[:, -1, :] = -BIG
    R[:, -1, -1] = R[:, -2, -2]
    for b in range(B):
        for j in range(M, 0, -1):
            for i in range(N, 0, -1):
                a = np.exp((R[b, i + 1, j] - warp - R[b, i, j] - D[b, i + 1, j]) / gamma)
                c = np.exp((R[b, i, j + 1] - warp - R[b, i, j] - D[b, i, j + 1]) / gamma)
                d = np.exp((R[b, i + 1, j + 1] - R[b, i, j] - D[b, i + 1, j + 1]) / gamma)
                E[b, i, j] = E[b, i + 1, j] + E[b, i, j + 1] + E[b, i + 1, j + 1]
    return E[:, 1 : N + 1, 1 : M + 1]


class SoftDTWFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, D, gamma, warp):
        distances = D.detach().cpu().numpy().astype(np.float64)
        R = accumulate(distances, gamma, warp)
        ctx.save_for_backward(D, torch.from_numpy(R))
        ctx.gamma, ctx.warp = gamma, warp
        return torch.from_numpy(R[:, -2, -2].copy()).to(D)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        D, R = ctx.saved_tensors
        E = accumulate_backward(D.cpu().numpy().astype(np.float64), R.numpy(), ctx.gamma, ctx.warp)
        E = torch.from_numpy(E).to(grad_output)
        return grad_output.view(-1, 1, 1) * E, None, None


class SoftDTWLoss(nn.Module):
    def __init__(self, gamma=0.2, warp=0.5):
        super().__init__()
        self.gamma, self.warp = gamma, warp

    def forward(self, mels, targets):
        distance = (mels.unsqueeze(2) - targets.unsqueeze(1)).abs().mean(-1)
        return SoftDTWFunction.apply(distance, self.gamma, self.warp).mean() / targets.shape[1]


def target(D):
    return SoftDTWFunction.apply(D, 0.3, 0.4)


def make_inputs():
    g = torch.Generator().manual_seed(0)
    return (torch.rand(2, 4, 3, dtype=torch.float64, generator=g).requires_grad_(True),)


class Decoder(nn.Module):
    def __init__(self, text_dim=8, n_mel=6, width=24):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(text_dim, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, width, 3, padding=1), nn.ReLU()
        )
        self.mel = nn.Linear(width, n_mel)

    def forward(self, text):
        return self.mel(self.conv(text.transpose(1, 2)).transpose(1, 2))


def make_batch(generator, mixing, batch_size=6, frames=9):
    text = torch.randn(batch_size, frames, 8, generator=generator)
    clean = torch.tanh(text @ mixing)
    rows = []
    for item in clean:
        jitter = torch.randint(0, 2, (frames,), generator=generator)
        index = (torch.arange(frames) + jitter).clamp(max=frames - 1)
        rows.append(item[index])
    return text, torch.stack(rows), clean


def main(steps=60):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(8, 6, generator=generator)
    model, criterion = Decoder(), SoftDTWLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        text, mels, _ = make_batch(generator, mixing)
        loss = criterion(model(text), mels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        text, _, clean = make_batch(generator, mixing, batch_size=64)
        error = (model(text) - clean).abs().mean().item()
    print(f"mean error {error:.4f}")
    return error


if __name__ == "__main__":
    main()
