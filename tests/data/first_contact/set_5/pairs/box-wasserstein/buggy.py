"""Box regression with a Gaussian Wasserstein distance: boxes as normal distributions, anchors as a start."""
import torch
from torch import nn


def to_gaussian(boxes):
    """Boxes (cx, cy, w, h) as means and standard deviations."""
    return boxes[..., :2], boxes[..., 2:] / 2


class GaussianBoxLoss(nn.Module):
    def __init__(self, tau=1.0, loss_weight=2.0):
        super().__init__()
        self.tau = tau
        self.loss_weight = loss_weight

    def distance(self, pred, target):
        mu_p, sigma_p = to_gaussian(pred)
        mu_t, sigma_t = to_gaussian(target)
        xy_distance = (mu_p - mu_t).square().sum(dim=-1)
        wh_distance = (sigma_p - sigma_t).square().sum(dim=-1)
        return (xy_distance + wh_distance).sqrt()

    def forward(self, pred, target):
        distance = torch.log1p(self.distance(pred, target))
        return self.loss_weight * (1 - 1 / (self.tau + distance)).mean()


class BoxHead(nn.Module):
    """Predicts offsets of anchors; the last layer begins at zero so that training starts from the anchors."""

    def __init__(self, features=16, hidden=32):
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.delta = nn.Linear(hidden, 4)
        nn.init.zeros_(self.delta.weight)
        nn.init.zeros_(self.delta.bias)

    def forward(self, features, anchors):
        d = self.delta(torch.relu(self.hidden(features)))
        centre = anchors[:, :2] + d[:, :2] * anchors[:, 2:]
        size = anchors[:, 2:] * d[:, 2:].exp()
        return torch.cat([centre, size], dim=1)


def assign(n, generator):
    """Objects of which most lie beside their anchor, and some exactly on it."""
    anchors = torch.cat([torch.randint(0, 64, (n, 2), generator=generator).float(),
                         torch.full((n, 2), 8.0)], dim=1)
    features = torch.randn(n, 16, generator=generator)
    shift = torch.round(2 * features[:, :4])
    shift[:, 2:] = shift[:, 2:].clamp(-3, 3)
    return features, anchors, anchors + shift


def run(steps, batch, lr, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    head = BoxHead()
    criterion = GaussianBoxLoss()
    optimizer = torch.optim.AdamW(head.parameters(), lr=lr)
    losses = []
    for step in range(steps):
        features, anchors, gt = assign(batch, generator)
        loss = criterion(head(features, anchors), gt)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 10.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0:
            print(f"step {step:3d} box loss {losses[-1]:.4f}")
    return head, losses


def main():
    return run(steps=60, batch=512, lr=3e-3, seed=13)


if __name__ == "__main__":
    main()
