import numpy as np
import torch
from torch import nn


def softdtw_forward(D, gamma):
    batch, n, m = D.shape
    R = np.full((batch, n + 2, m + 2), np.inf)
    R[:, 0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            steps = np.stack([R[:, i - 1, j - 1], R[:, i - 1, j], R[:, i, j - 1]])
            z = -steps / gamma
            z_max = z.max(axis=0)
            soft_min = -gamma * (np.log(np.exp(z - z_max).sum(axis=0)) + z_max)
            R[:, i, j] = D[:, i - 1, j - 1] + soft_min
    return R


def softdtw_backward(D_, R, gamma):
    batch, n, m = D_.shape
    D = np.zeros((batch, n + 2, m + 2))
    D[:, 1 : n + 1, 1 : m + 1] = D_
    E = np.zeros((batch, n + 2, m + 2))
    G = np.zeros((batch, n + 2, m + 2))
    E[:, -1, -1] = 1.0
    R = R.copy()
    R[:, :, -1] = -np.inf
    R[:, -1, :] = -np.inf
    R[:, -1, -1] = R[:, -2, -2]
    for j in range(m, 0, -1):
        for i in range(n, 0, -1):
            a = np.exp((R[:, i + 1, j] - R[:, i, j] - D[:, i + 1, j]) / gamma)
            b = np.exp((R[:, i, j + 1] - R[:, i, j] - D[:, i, j + 1]) / gamma)
            c = np.exp((R[:, i + 1, j + 1] - R[:, i, j] - D[:, i + 1, j + 1]) / gamma)
            E[:, i, j] = E[:, i + 1, j] * a + E[:, i, j + 1] * b + E[:, i + 1, j + 1] * c
            G[:, i, j] = E[:, i + 1, j] * a + E[:, i, j + 1] * b + E[:, i + 1, j + 1] * c
    return G[:, 1 : n + 1, 1 : m + 1]


class SoftDTWFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, D, gamma):
        R = softdtw_forward(D.detach().numpy().astype(np.float64), gamma)
        R = torch.from_numpy(R)
        ctx.gamma = gamma
        ctx.save_for_backward(D, R)
        return R[:, -2, -2].to(D.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        D, R = ctx.saved_tensors
        grad = softdtw_backward(D.numpy().astype(np.float64), R.numpy(), ctx.gamma)
        grad = torch.from_numpy(grad).to(D.dtype)
        return grad_output.view(-1, 1, 1) * grad, None


class SoftDTW(nn.Module):
    def __init__(self, gamma=0.05, warp=1.0):
        super().__init__()
        self.gamma = gamma
        self.warp = warp

    def forward(self, predicted, target):
        D = (predicted.unsqueeze(2) - target.unsqueeze(1)).abs().mean(dim=-1)
        n, m = D.shape[1:]
        offset = torch.arange(n).view(-1, 1) / n - torch.arange(m).view(1, -1) / m
        D = D + self.warp * offset.abs().unsqueeze(0)
        return SoftDTWFunction.apply(D, self.gamma).mean()


class MelDecoder(nn.Module):
    def __init__(self, n_phones, n_mels, frames, dim=32):
        super().__init__()
        self.embed = nn.Embedding(n_phones, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.upsample = nn.Upsample(size=frames, mode="linear", align_corners=False)
        self.proj = nn.Sequential(nn.Linear(2 * dim, dim), nn.Tanh(), nn.Linear(dim, n_mels))

    def forward(self, phones):
        hidden, _ = self.encoder(self.embed(phones))
        hidden = self.upsample(hidden.transpose(1, 2)).transpose(1, 2)
        return self.proj(hidden)


def target(D):
    return SoftDTWFunction.apply(D, 0.5)


def make_inputs():
    generator = torch.Generator().manual_seed(1)
    D = torch.rand(2, 4, 5, generator=generator, dtype=torch.float64)
    return (D.requires_grad_(),)


def make_utterances(n, frames, n_phones, n_mels):
    phones = torch.randint(0, n_phones, (n, 6))
    basis = torch.randn(n_phones, n_mels)
    durations = torch.randint(1, 4, (n, 6))
    mels = []
    for row, duration in zip(phones, durations):
        mel = basis[row].repeat_interleave(duration, dim=0)
        index = torch.linspace(0, len(mel) - 1, frames).round().long()
        mels.append(mel[index])
    return phones, torch.stack(mels)


def main():
    torch.manual_seed(0)
    frames, n_phones, n_mels = 12, 10, 8
    phones, mels = make_utterances(16, frames, n_phones, n_mels)
    model = MelDecoder(n_phones, n_mels, frames)
    criterion = SoftDTW()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(90):
        pick = torch.randint(0, len(phones), (8,))
        loss = criterion(model(phones[pick]), mels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step:3d} soft-dtw {loss.item():.4f}")
    with torch.no_grad():
        final = criterion(model(phones), mels).item()
    print(f"final soft-dtw {final:.4f}")


if __name__ == "__main__":
    main()
