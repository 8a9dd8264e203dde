import math

import torch
import torch.nn.functional as F
from torch import nn

MAX_VERTICES = 8


def pad_polygon(points, size=MAX_VERTICES):
    missing = size - len(points)
    return torch.cat([points, points[-1:].expand(missing, 2)]) if missing else points


def shoelace_area(vertices):
    x, y = vertices.unbind(-1)
    return 0.5 * (x * y.roll(-1, -1) - x.roll(-1, -1) * y).sum(-1).abs()


def edge_lengths(vertices):
    edge = vertices.roll(-1, dims=-2) - vertices
    return torch.sqrt(edge.square().sum(-1))


def isoperimetric_ratio(vertices, eps=1e-6):
    perimeter = edge_lengths(vertices).sum(-1)
    return 4.0 * math.pi * shoelace_area(vertices) / (perimeter.square() + eps)


class PolygonLoss(nn.Module):
    def __init__(self, shape_weight=0.2, size_weight=0.2):
        super().__init__()
        self.shape_weight = shape_weight
        self.size_weight = size_weight

    def forward(self, predicted, target):
        points = F.smooth_l1_loss(predicted, target, beta=0.05)
        shape = (isoperimetric_ratio(predicted) - isoperimetric_ratio(target)).abs().mean()
        size = (shoelace_area(predicted) - shoelace_area(target)).abs().mean()
        return points + self.shape_weight * shape + self.size_weight * size


class PolygonHead(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, channels, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(channels * 36, 96),
            nn.ReLU(),
        )
        self.vertices = nn.Linear(96, MAX_VERTICES * 2)

    def forward(self, image, counts):
        raw = self.vertices(self.encoder(image)).view(-1, MAX_VERTICES, 2).tanh()
        last = (counts - 1).view(-1, 1)
        index = torch.minimum(torch.arange(MAX_VERTICES).expand(len(counts), -1), last)
        return raw.gather(1, index.unsqueeze(-1).expand(-1, -1, 2))


def target(corners):
    vertices = torch.stack([pad_polygon(polygon) for polygon in corners])
    return isoperimetric_ratio(vertices)


def make_inputs():
    generator = torch.Generator().manual_seed(4)
    angle = torch.arange(5, dtype=torch.float64) * (2 * math.pi / 5)
    radius = 0.6 + 0.3 * torch.rand(2, 5, generator=generator, dtype=torch.float64)
    corners = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
    return (corners.requires_grad_(),)


def make_shapes(n, size=24):
    grid = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    images, polygons, counts = [], [], []
    for _ in range(n):
        count = MAX_VERTICES if torch.rand(1) < 0.8 else int(torch.randint(4, MAX_VERTICES, (1,)))
        angle = torch.arange(count) * (2 * math.pi / count) + 0.2 * torch.rand(1)
        radius = (0.35 + 0.5 * torch.rand(1)) * (1 + 0.05 * torch.randn(count))
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1).clamp(-0.95, 0.95)
        inside = torch.ones(size, size)
        for a, b in zip(points, points.roll(-1, dims=0)):
            cross = (b[0] - a[0]) * (yy - a[1]) - (b[1] - a[1]) * (xx - a[0])
            inside = inside * (cross > 0)
        images.append(inside + 0.1 * torch.randn(size, size))
        polygons.append(pad_polygon(points))
        counts.append(count)
    return torch.stack(images).unsqueeze(1), torch.stack(polygons), torch.tensor(counts)


class Trainer:
    def __init__(self, model, criterion, lr=2e-3, max_norm=5.0):
        self.model, self.criterion, self.max_norm = model, criterion, max_norm
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def step(self, images, polygons, counts):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(images, counts), polygons)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    images, polygons, counts = make_shapes(240)
    trainer = Trainer(PolygonHead(), PolygonLoss())
    for epoch in range(8):
        total, batches = 0.0, torch.randperm(len(images)).split(8)
        for pick in batches:
            total += trainer.step(images[pick], polygons[pick], counts[pick])
        print(f"epoch {epoch} loss {total / len(batches):.4f}")


if __name__ == "__main__":
    main()
