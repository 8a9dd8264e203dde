"""1-D super-resolution in the wavelet domain: predict the high-pass band from the low-pass band."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F


@dataclass
class Options:
    length: int = 64
    samples: int = 128
    width: int = 16
    sparsity: float = 1e-3
    lr: float = 5e-3
    batch: int = 32
    epochs: int = 40
    seed: int = 3


def haar_filters(dtype=torch.float32):
    s = 2 ** -0.5
    h0, h1 = torch.tensor([[[s, s]]], dtype=dtype), torch.tensor([[[s, -s]]], dtype=dtype)
    return h0, h1


def analysis(x, h0, h1):
    return F.conv1d(x, h0, stride=2), F.conv1d(x, h1, stride=2)


class SFB1D(Function):
    """Synthesis filter bank; its adjoint is the analysis filter bank, so no activations are kept."""

    @staticmethod
    def forward(ctx, low, high, g0, g1):
        ctx.save_for_backward(g0, g1)
        return F.conv_transpose1d(low, g0, stride=2) + F.conv_transpose1d(high, g1, stride=2)

    @staticmethod
    def backward(ctx, dy):
        dlow, dhigh = None, None
        if ctx.needs_input_grad[0]:
            g0, g1 = ctx.saved_tensors
            dlow, dhigh = analysis(dy, g0, g1)
        return dlow, dhigh, None, None


class InverseDWT(nn.Module):
    def __init__(self):
        super().__init__()
        h0, h1 = haar_filters()
        self.register_buffer("g0", h0)
        self.register_buffer("g1", h1)

    def forward(self, low, high):
        return SFB1D.apply(low, high, self.g0, self.g1)


class DetailNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 5, padding=2), nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2), nn.GELU(),
            nn.Conv1d(width, 1, 5, padding=2),
        )

    def forward(self, low):
        return self.body(low)


class SuperResolver(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.details = DetailNet(width)
        self.idwt = InverseDWT()

    def forward(self, low):
        high = self.details(low)
        return self.idwt(low, high), high


def make_signals(options):
    t = torch.linspace(0, 1, options.length)
    freq = 4 + 10 * torch.rand(options.samples, 1)
    phase = 6.28 * torch.rand(options.samples, 1)
    return torch.sin(6.28 * freq * t + phase).unsqueeze(1)


def psnr(prediction, target):
    return (10 * torch.log10(4 / F.mse_loss(prediction, target))).item()


def target(low, high):
    g0, g1 = haar_filters(torch.float64)
    return SFB1D.apply(low, high, g0, g1)


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(2, 1, 4, dtype=torch.float64, generator=generator)
    high = torch.randn(2, 1, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    return low, high


def main(options=Options()):
    torch.manual_seed(options.seed)
    signals = make_signals(options)
    train, valid = signals[:96], signals[96:]
    h0, h1 = haar_filters()
    model = SuperResolver(options.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    result = 0.0
    for epoch in range(options.epochs):
        model.train()
        for chunk in train[torch.randperm(len(train))].split(options.batch):
            low, _ = analysis(chunk, h0, h1)
            restored, high = model(low)
            loss = F.mse_loss(restored, chunk) + options.sparsity * high.abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 10 == 9:
            model.eval()
            with torch.no_grad():
                result = psnr(model(analysis(valid, h0, h1)[0])[0], valid)
            print(f"epoch {epoch + 1:3d}  loss {loss.item():.5f}  PSNR {result:.2f}")
    return {"psnr": result}


if __name__ == "__main__":
    main()
