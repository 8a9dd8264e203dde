"""Classifier training that logs guided-backprop saliency maps after every epoch."""
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    size: int = 8
    classes: int = 4
    samples: int = 256
    batch: int = 32
    epochs: int = 8
    lr: float = 0.03
    probes: list = field(default_factory=lambda: [0, 1, 2])
    seed: int = 15


class SmallCNN(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 12, 3, padding=1, stride=2), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        )
        self.classifier = nn.Linear(16 * 4, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class GuidedBackprop:
    """Only positive gradients pass the ReLUs (Springenberg et al., 2015)."""

    def __init__(self, model):
        self.model = model
        self.handles = []
        for module in model.modules():
            if isinstance(module, nn.ReLU):
                self.handles.append(module.register_full_backward_hook(self._clamp))

    @staticmethod
    def _clamp(module, grad_input, grad_output):
        return (grad_input[0].clamp(min=0),)

    def saliency(self, image, label):
        image = image.clone().requires_grad_(True)
        score = self.model(image[None])[0, label]
        (gradient,) = torch.autograd.grad(score, image)
        return gradient.abs().amax(dim=0)

    def close(self):
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


class SaliencyLogger:
    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.maps = []

    def log(self, model):
        was_training = model.training
        model.eval()
        guided = GuidedBackprop(model)
        maps = [guided.saliency(image, label) for image, label in zip(self.images, self.labels)]
        guided.close()
        self.maps.append(torch.stack(maps))
        model.train(was_training)


def make_images(cfg):
    labels = torch.randint(cfg.classes, (cfg.samples,))
    prototypes = torch.randn(cfg.classes, 1, cfg.size, cfg.size)
    return prototypes[labels] + 1.5 * torch.randn(cfg.samples, 1, cfg.size, cfg.size), labels


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    result = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return result


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    images, labels = make_images(cfg)
    model = SmallCNN(cfg.classes)
    logger = SaliencyLogger(images[cfg.probes], labels[cfg.probes])
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    history = []
    for epoch in range(cfg.epochs):
        total = 0.0
        for index in torch.randperm(len(images)).split(cfg.batch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[index]), labels[index])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index)
        history.append(total / len(images))
        logger.log(model)
        if epoch % 3 == 1:
            print(f"epoch {epoch}  loss {history[-1]:.4f}  acc {accuracy(model, images, labels):.3f}")
    hooks = sum(len(m._backward_hooks) for m in model.modules())
    return {"history": history, "hooks": hooks}


if __name__ == "__main__":
    main()
