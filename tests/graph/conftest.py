from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import resvg_py
import torch
from PIL import ImageFont
from torch import nn

from gradcheck_suite.graph.render import png

if TYPE_CHECKING:
    from collections.abc import Callable


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)) + x)


class SmallResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(Residual(4), Residual(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).relu()).mean((2, 3)))


def expression():
    x = torch.randn(3, requires_grad=True)
    y = torch.randn(3, requires_grad=True)
    return (x * x + torch.sin(2 * y)).sum(), None


def perceptron():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    return model(torch.randn(4, 6)).sum(), model


def resnet():
    model = SmallResNet()
    return model(torch.randn(2, 3, 8, 8)).sum(), model


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model(torch.randn(2, 5, 8)).sum(), model


def copy_slices():
    x = torch.randn(4, 4, requires_grad=True)
    y = x.clone()
    y[:2] = x[2:] * 3
    y[0].mul_(2)
    return y.sum(), None


def custom_function():
    x = torch.randn(3, requires_grad=True)
    return Square.apply(x * 1).sum(), None


SUBJECTS = {
    make.__name__: make
    for make in (expression, perceptron, resnet, transformer, copy_slices, custom_function)
}


@pytest.fixture(params=sorted(SUBJECTS))
def subject(request) -> Callable:
    """A function that builds (tensors, model), the same each time it is called."""

    def build():
        torch.manual_seed(0)
        return SUBJECTS[request.param]()

    return build


@pytest.fixture
def square() -> type[torch.autograd.Function]:
    return Square


@pytest.fixture
def small_resnet() -> nn.Module:
    torch.manual_seed(0)
    return SmallResNet()


@pytest.fixture
def truth() -> Callable:
    """Walk a graph the plain way: the set of nodes and the list of edges, as torch tells them."""

    def walk(*roots):
        nodes, edges = [], []
        pending = [root.grad_fn for root in roots]
        while pending:
            node = pending.pop()
            if node in nodes:
                continue
            nodes.append(node)
            for index, (target, output) in enumerate(node.next_functions):
                if target is not None:
                    edges.append((node, target, index, output))
                    pending.append(target)
        return nodes, edges

    return walk


@pytest.fixture(scope="session")
def draw_svg(tmp_path_factory) -> Callable:
    """Draw SVG by resvg, with the font that Pillow carries where the machine has none."""
    path = tmp_path_factory.mktemp("fonts") / "aileron.ttf"
    path.write_bytes(ImageFont.load_default(size=10).path.getvalue())
    return partial(resvg_py.svg_to_bytes, font_files=[str(path)], sans_serif_family="Aileron")


@pytest.fixture
def fonts(monkeypatch, draw_svg):
    """Have a font for PNG files on every machine; return a function that takes all away."""

    def use(draw):
        png._finds_fonts.cache_clear()
        monkeypatch.setattr(resvg_py, "svg_to_bytes", draw)

    use(draw_svg)
    yield lambda: use(partial(draw_svg.func, skip_system_fonts=True))
    png._finds_fonts.cache_clear()
