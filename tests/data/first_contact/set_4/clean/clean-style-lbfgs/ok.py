"""Style transfer: the image is optimized by L-BFGS through a frozen feature extractor read by forward hooks."""
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Config:
    size: int = 16
    steps: int = 12
    style_weight: float = 200.0
    content_weight: float = 1.0
    tv_weight: float = 0.01
    style_layers: tuple = (1, 4)
    content_layer: int = 4
    seed: int = 23


def make_extractor():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
                         nn.Conv2d(8, 12, 3, padding=1), nn.ReLU())


def gram(features):
    b, c, h, w = features.shape
    flat = features.reshape(b, c, h * w)
    return flat @ flat.transpose(1, 2) / (c * h * w)


class FeatureReader:
    """Collects the outputs of the chosen layers during one pass, and forgets them after."""

    def __init__(self, net, layers):
        self.net, self.features = net, {}
        self.handles = [net[i].register_forward_hook(self.make_hook(i)) for i in layers]

    def make_hook(self, index):
        def hook(module, inputs, output):
            self.features[index] = output
        return hook

    def __call__(self, image):
        self.net(image)
        features, self.features = self.features, {}
        return features

    def close(self):
        for handle in self.handles:
            handle.remove()


class StyleTransfer:
    def __init__(self, cfg, net, content, style):
        self.cfg = cfg
        self.net = net.eval().requires_grad_(False)
        self.reader = FeatureReader(self.net, sorted({*cfg.style_layers, cfg.content_layer}))
        with torch.no_grad():
            self.content_target = self.reader(content)[cfg.content_layer]
            style_features = self.reader(style)
            self.style_targets = {i: gram(style_features[i]) for i in cfg.style_layers}
        self.image = content.clone().requires_grad_(True)
        self.optimizer = torch.optim.LBFGS([self.image], lr=0.5, max_iter=4, history_size=10)
        self.history = []

    def closure(self):
        self.optimizer.zero_grad()
        features = self.reader(self.image)
        content = F.mse_loss(features[self.cfg.content_layer], self.content_target)
        style = sum(F.mse_loss(gram(features[i]), t) for i, t in self.style_targets.items())
        tv = (self.image[..., 1:] - self.image[..., :-1]).abs().mean()
        loss = self.cfg.content_weight * content + self.cfg.style_weight * style + self.cfg.tv_weight * tv
        loss.backward()
        return loss

    def run(self):
        for step in range(self.cfg.steps):
            loss = self.optimizer.step(self.closure)
            with torch.no_grad():
                self.image.clamp_(0, 1)
            self.history.append(loss.item())
            if step % 4 == 0:
                print(f"step {step} loss {loss.item():.5f}")
        self.reader.close()
        return self.image.detach()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    net = make_extractor()
    content, style = torch.rand(1, 3, cfg.size, cfg.size), torch.rand(1, 3, cfg.size, cfg.size) ** 3
    transfer = StyleTransfer(cfg, net, content, style)
    image = transfer.run()
    return {"first": transfer.history[0], "last": transfer.history[-1], "moved": (image - content).abs().mean().item()}


if __name__ == "__main__":
    main()
