import itertools

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class IMTL(nn.Module):
    """Loss-balanced impartial multi-task learning: each task loss is scaled by exp(s_t)."""

    def __init__(self, num_losses, method="loss", base=np.e):
        super().__init__()
        self.method = method
        self.base = float(base)
        self.num_losses = num_losses
        self.s_t = nn.Parameter(torch.zeros(num_losses))

    def _scale(self, losses):
        return torch.stack([self.base ** self.s_t[i] * losses[i] - self.s_t[i] for i in range(len(losses))])

    def forward(self, losses):
        if self.method == "equal":
            return torch.stack(losses).sum()
        return self._scale(losses).sum()


class SharedEncoder(nn.Module):
    def __init__(self, channels=(1, 12, 24)):
        super().__init__()
        layers = []
        for c_in, c_out in zip(channels[:-1], channels[1:]):
            layers += [nn.Conv2d(c_in, c_out, 3, stride=2, padding=1), nn.BatchNorm2d(c_out), nn.ReLU()]
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return self.body(x)


class MultiTaskNet(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.encoder = SharedEncoder()
        self.segmentation = nn.Sequential(
            nn.ConvTranspose2d(24, 12, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(12, num_classes, 4, stride=2, padding=1),
        )
        self.depth = nn.Sequential(
            nn.ConvTranspose2d(24, 12, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
        )
        self.angle = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 2))

    def forward(self, x):
        z = self.encoder(x)
        return {"seg": self.segmentation(z), "depth": self.depth(z), "angle": self.angle(z)}


class ShapesDataset(torch.utils.data.Dataset):
    def __init__(self, n, size=16, seed=0):
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[0:size, 0:size] / size - 0.5
        self.items = []
        for _ in range(n):
            theta = rng.uniform(0, np.pi)
            slope = np.cos(theta) * xx + np.sin(theta) * yy
            seg = np.digitize(slope, [-0.15, 0.15])
            depth = 10.0 * (slope + 1.0)
            image = slope + 0.1 * rng.standard_normal(slope.shape)
            angle = np.array([np.cos(2 * theta), np.sin(2 * theta)])
            self.items.append(
                (
                    torch.tensor(image[None], dtype=torch.float32),
                    torch.tensor(seg, dtype=torch.long),
                    torch.tensor(depth[None], dtype=torch.float32),
                    torch.tensor(angle, dtype=torch.float32),
                )
            )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def compute_losses(out, seg, depth, angle):
    return [
        F.cross_entropy(out["seg"], seg),
        F.mse_loss(out["depth"], depth),
        F.mse_loss(out["angle"], angle),
    ]


def train_epoch(model, imtl, optimizer, loader):
    model.train()
    totals = np.zeros(3)
    for image, seg, depth, angle in loader:
        optimizer.zero_grad()
        losses = compute_losses(model(image), seg, depth, angle)
        loss = imtl(losses)
        loss.backward()
        optimizer.step()
        totals += np.array([l.item() for l in losses])
    return totals / len(loader)


def validate(model, loader):
    model.eval()
    totals = np.zeros(3)
    with torch.no_grad():
        for image, seg, depth, angle in loader:
            totals += np.array([l.item() for l in compute_losses(model(image), seg, depth, angle)])
    return totals / len(loader)


def main():
    torch.manual_seed(3)
    np.set_printoptions(precision=3, suppress=True)
    train_loader = torch.utils.data.DataLoader(ShapesDataset(192, seed=1), batch_size=32, shuffle=True)
    val_loader = torch.utils.data.DataLoader(ShapesDataset(64, seed=2), batch_size=32)
    model = MultiTaskNet()
    imtl = IMTL(num_losses=3, method="loss")
    parameters = itertools.chain(model.parameters(), imtl.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for epoch in range(8):
        tr = train_epoch(model, imtl, optimizer, train_loader)
        va = validate(model, val_loader)
        print(f"[{epoch}] train seg/depth/angle {tr}  val {va}  s_t {imtl.s_t.detach().numpy()}")


if __name__ == "__main__":
    main()
