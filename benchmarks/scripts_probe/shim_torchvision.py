"""torchvision with pictures of noise in the place of its data sets; models and transforms stay."""
# It takes whatever its untyped original takes.
# ruff: noqa: ANN001, ANN002, ANN003, ANN202, ANN204, ARG001

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image

# The compiled operators are for another build of torch; nothing here calls them.
_LIBRARY = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision import datasets, models  # noqa: E402 - the operator has to be there first

SIZE = int(os.environ.get("AUDIT_SCRIPTS_PICTURES", "128"))


class _Noise(torch.utils.data.Dataset):
    """Pictures drawn by a generator of their own."""

    side, channels, count = 32, 3, 10

    def __init__(self, root=None, *args, transform=None, target_transform=None, **kwargs):
        self.root, self.transform, self.target_transform = root, transform, target_transform
        if transform is None:
            self.transform = next((each for each in args if callable(each)), None)
        self.train = kwargs.get("train", next((x for x in args if isinstance(x, bool)), True))
        draw = np.random.default_rng(1)
        self.data = draw.integers(0, 256, (SIZE, self.side, self.side, self.channels), "uint8")
        self.targets = draw.integers(0, self.count, SIZE).tolist()
        self.classes = [str(number) for number in range(self.count)]
        if self.channels == 1:
            self.data = torch.from_numpy(self.data[..., 0])
            self.targets = torch.tensor(self.targets)

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        if not 0 <= index < SIZE:
            raise IndexError(index)
        picture = Image.fromarray(np.asarray(self.data[index]))
        target = int(self.targets[index])
        if self.transform is not None:
            picture = self.transform(picture)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return picture, target


def _noise(name, side, channels, count):
    return type(name, (_Noise,), {"side": side, "channels": channels, "count": count})


for _name, _sides in {
    "MNIST": (28, 1, 10),
    "FashionMNIST": (28, 1, 10),
    "CIFAR10": (32, 3, 10),
    "CIFAR100": (32, 3, 100),
    "SVHN": (32, 3, 10),
    "STL10": (96, 3, 10),
    "LSUN": (64, 3, 10),
    "CelebA": (64, 3, 10),
}.items():
    setattr(datasets, _name, _noise(_name, *_sides))
_Folder = datasets.ImageFolder
_NoFolder = _noise("ImageFolder", 64, 3, 4)


def _folder(root, *args, **kwargs):
    real = Path(root).is_dir() and any(Path(root).glob("*/*.*"))
    return (_Folder if real else _NoFolder)(root, *args, **kwargs)


datasets.ImageFolder = _folder


def _without_weights(make):
    def made(*args, **kwargs):
        for name in ("weights", "pretrained"):
            kwargs.pop(name, None)
        return make(**kwargs)

    return made


for _name in ("vgg16", "vgg19", "resnet18", "resnet34", "resnet50", "resnet152", "inception_v3"):
    setattr(models, _name, _without_weights(getattr(models, _name)))
