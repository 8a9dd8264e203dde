import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def set_random_seed(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)


def dominant_periods(x, k):
    spectrum = torch.fft.rfft(x, dim=1).abs()
    mean_amp = spectrum.mean(0).mean(-1)
    mean_amp[0] = 0
    _, top = torch.topk(mean_amp, k)
    top = top.detach().cpu().numpy()
    periods = [max(2, x.shape[1] // int(f)) for f in top]
    return periods, spectrum.mean(-1)[:, top]


class InceptionBlock(nn.Module):
    def __init__(self, in_channels, out_channels, num_kernels):
        super().__init__()
        self.kernels = nn.ModuleList(
            nn.Conv2d(in_channels, out_channels, kernel_size=2 * i + 1, padding=i) for i in range(num_kernels)
        )

    def forward(self, x):
        return torch.stack([kernel(x) for kernel in self.kernels], dim=-1).mean(-1)


class TimesBlock(nn.Module):
    def __init__(self, seq_len, top_k, d_model, d_ffn, num_kernels):
        super().__init__()
        self.seq_len = seq_len
        self.top_k = top_k
        self.conv = nn.Sequential(
            InceptionBlock(d_model, d_ffn, num_kernels), nn.GELU(), InceptionBlock(d_ffn, d_model, num_kernels)
        )

    def forward(self, x):
        b, t, n = x.shape
        periods, weight = dominant_periods(x, self.top_k)
        res = []
        for period in periods:
            pad = (-t) % period
            out = F.pad(x, (0, 0, 0, pad)) if pad else x
            out = out.reshape(b, (t + pad) // period, period, n).permute(0, 3, 1, 2)
            out = self.conv(out)
            res.append(out.permute(0, 2, 3, 1).reshape(b, -1, n)[:, :t])
        res = torch.stack(res, dim=-1)
        weight = F.softmax(weight, dim=1)[:, None, None, :]
        return (res * weight).sum(-1) + x


class BackboneTimesNet(nn.Module):
    def __init__(self, n_layers, n_steps, top_k, d_model, d_ffn, n_kernels):
        super().__init__()
        self.n_layers = n_layers
        self.model = nn.ModuleList(
            TimesBlock(n_steps, top_k, d_model, d_ffn, n_kernels) for _ in range(n_layers)
        )
        self.layer_norm = nn.LayerNorm(d_model)

    def forward(self, X):
        enc_out = X
        for i in range(self.n_layers):
            enc_out = self.layer_norm(self.model[i](enc_out))
        return enc_out


class ImputationTimesNet(nn.Module):
    def __init__(self, n_steps, n_features, n_layers=3, d_model=16, d_ffn=24, top_k=2, n_kernels=2):
        super().__init__()
        self.enc_embedding = nn.Linear(2 * n_features, d_model)
        self.backbone = BackboneTimesNet(n_layers, n_steps, top_k, d_model, d_ffn, n_kernels)
        self.projection = nn.Linear(d_model, n_features)

    def forward(self, inputs):
        X, mask = inputs["X"], inputs["missing_mask"]
        enc = self.enc_embedding(torch.cat([X, mask], dim=-1))
        recon = self.projection(self.backbone(enc))
        results = {"imputed": mask * X + (1 - mask) * recon}
        if self.training:
            results["loss"] = masked_mae(recon, inputs["X_ori"], inputs["indicating_mask"]) + masked_mae(
                recon, X, mask
            )
        return results


def masked_mae(pred, target, mask):
    return ((pred - target).abs() * mask).sum() / (mask.sum() + 1e-9)


def make_dataset(n_samples, n_steps, n_features, rate=0.2):
    t = np.arange(n_steps)[None, :, None]
    phase = np.random.rand(n_samples, 1, n_features) * 2 * np.pi
    freq = np.random.choice([2, 3, 4], size=(n_samples, 1, n_features))
    x = np.sin(2 * np.pi * freq * t / n_steps + phase) + 0.05 * np.random.randn(n_samples, n_steps, n_features)
    return torch.tensor(x, dtype=torch.float32), rate


def corrupt(x_ori, rate):
    mask = (torch.rand_like(x_ori) > rate).float()
    return {"X_ori": x_ori, "X": x_ori * mask, "missing_mask": mask, "indicating_mask": 1 - mask}


class TimesNet:
    def __init__(self, n_steps, n_features, epochs=6, batch_size=32, lr=3e-3):
        self.model = ImputationTimesNet(n_steps, n_features)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.epochs = epochs
        self.batch_size = batch_size

    def fit(self, data, rate):
        for epoch in range(self.epochs):
            self.model.train()
            losses = []
            for idx in torch.randperm(len(data)).split(self.batch_size):
                self.optimizer.zero_grad()
                results = self.model(corrupt(data[idx], rate))
                results["loss"].backward()
                self.optimizer.step()
                losses.append(results["loss"].item())
            print(f"Epoch {epoch:03d} - training loss: {np.mean(losses):.4f}")

    def impute(self, data, rate):
        self.model.eval()
        with torch.no_grad():
            batch = corrupt(data, rate)
            imputed = self.model(batch)["imputed"]
        return masked_mae(imputed, batch["X_ori"], batch["indicating_mask"]).item()


def main():
    set_random_seed(11)
    n_steps, n_features = 24, 4
    train, rate = make_dataset(256, n_steps, n_features)
    test, _ = make_dataset(64, n_steps, n_features)
    timesnet = TimesNet(n_steps, n_features)
    timesnet.fit(train, rate)
    print(f"testing mae: {timesnet.impute(test, rate):.4f}")


if __name__ == "__main__":
    main()
