"""Segmentation on top of an encoder that was pretrained with a reconstruction task."""
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Options:
    size: int = 16
    width: int = 16
    pretrain_steps: int = 120
    finetune_steps: int = 80
    batch: int = 16
    lr: float = 3e-3
    freeze_encoder: bool = True
    seed: int = 5


def scenes(n, size, g):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx, cy = torch.randint(3, size - 3, (2, n, 1, 1), generator=g)
    r = torch.randint(2, 5, (n, 1, 1), generator=g)
    mask = ((xx - cx) ** 2 + (yy - cy) ** 2 <= r ** 2).float()
    sign = torch.where(torch.rand(n, 1, 1, generator=g) < 0.5, -1.0, 1.0)
    image = sign * mask + 0.3 * torch.randn(n, size, size, generator=g)
    return image.unsqueeze(1), mask.unsqueeze(1)


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv2(torch.relu(self.conv1(torch.relu(self.stem(x))))))


class PretrainNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder = Encoder(width)
        self.decoder = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.decoder(self.encoder(x))


class SegNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder = Encoder(width)
        self.head = nn.Conv2d(4, 1, 1)

    def forward(self, x):
        return self.head(self.encoder(x))


def save_checkpoint(path, model, optimizer, step):
    torch.save({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)


def load_pretrained(model, path):
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict({k.removeprefix("module."): v for k, v in checkpoint["state_dict"].items()}, strict=False)
    return checkpoint["step"]


def pretrain(opts, path):
    g = torch.Generator().manual_seed(opts.seed)
    net = nn.DataParallel(PretrainNet(opts.width))
    optimizer = torch.optim.Adam(net.parameters(), lr=opts.lr)
    for step in range(opts.pretrain_steps):
        image, mask = scenes(opts.batch, opts.size, g)
        smooth = F.avg_pool2d(image, 3, 1, 1)
        loss = F.mse_loss(net(image), torch.cat([smooth, smooth.abs()], 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_checkpoint(path, net, optimizer, opts.pretrain_steps)
    return loss.item()


def finetune(opts, path):
    g = torch.Generator().manual_seed(opts.seed + 1)
    model = SegNet(opts.width)
    load_pretrained(model, path)
    if opts.freeze_encoder:
        model.encoder.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for step in range(opts.finetune_steps):
        image, mask = scenes(opts.batch, opts.size, g)
        loss = F.binary_cross_entropy_with_logits(model(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"finetune {step + 1} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        image, mask = scenes(128, opts.size, g)
        pred = model(image) > 0
    inter = (pred & mask.bool()).sum().item()
    return inter / max(1, (pred | mask.bool()).sum().item())


def main():
    opts = Options()
    torch.manual_seed(opts.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pretrained.pt")
        print(f"pretrain loss {pretrain(opts, path):.4f}")
        iou = finetune(opts, path)
    print(f"IoU {iou:.3f}")
    return {"iou": iou}


if __name__ == "__main__":
    main()
