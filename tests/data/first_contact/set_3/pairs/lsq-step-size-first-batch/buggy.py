"""Quantization-aware training with learned step sizes (LSQ) for weights and activations."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    w_bits: int = 3
    a_bits: int = 3
    hidden: int = 32
    float_epochs: int = 6
    qat_epochs: int = 14
    batch_size: int = 64
    lr: float = 0.05
    qat_lr: float = 0.01
    weight_decay: float = 1e-4
    seed: int = 17


def grad_scale(x, scale):
    return (x - x * scale).detach() + x * scale


def round_pass(x):
    return (x.round() - x).detach() + x


class LsqQuantizer(nn.Module):
    def __init__(self, bits, signed):
        super().__init__()
        self.q_n = -(2 ** (bits - 1)) if signed else 0
        self.q_p = 2 ** (bits - 1) - 1 if signed else 2 ** bits - 1
        self.s = nn.Parameter(torch.ones(1))
        self.initialised = False

    def init_from(self, x):
        value = 2 * x.detach().abs().mean() / self.q_p ** 0.5
        self.s = nn.Parameter(value.reshape(1))
        self.initialised = True

    def forward(self, x):
        if not self.initialised:
            self.init_from(x)
        s = grad_scale(self.s, 1.0 / (x.numel() * self.q_p) ** 0.5)
        q = torch.clamp(x / s, self.q_n, self.q_p)
        return round_pass(q) * s


class QuantLinear(nn.Linear):
    def __init__(self, d_in, d_out, cfg, signed_input):
        super().__init__(d_in, d_out)
        self.quantize = False
        self.w_quant = LsqQuantizer(cfg.w_bits, signed=True)
        self.a_quant = LsqQuantizer(cfg.a_bits, signed=signed_input)

    def forward(self, x):
        if not self.quantize:
            return super().forward(x)
        return F.linear(self.a_quant(x), self.w_quant(self.weight), self.bias)


class Net(nn.Module):
    def __init__(self, cfg, d_in, classes):
        super().__init__()
        self.fc1 = QuantLinear(d_in, cfg.hidden, cfg, signed_input=True)
        self.fc2 = QuantLinear(cfg.hidden, cfg.hidden, cfg, signed_input=False)
        self.fc3 = nn.Linear(cfg.hidden, classes)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)

    def enable_quantization(self):
        for m in self.modules():
            if isinstance(m, QuantLinear):
                m.quantize = True

    def step_sizes(self):
        return {n: p for n, p in self.named_parameters() if n.endswith("quant.s")}


def run_epochs(model, data, optimizer, epochs, batch_size, tag):
    x, y = data
    for epoch in range(epochs):
        model.train()
        perm = torch.randperm(len(x))
        for i in range(0, len(x), batch_size):
            idx = perm[i:i + batch_size]
            loss = F.cross_entropy(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 5 == 0:
            print(f"{tag} epoch {epoch} loss {loss.item():.4f}")


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    return F.cross_entropy(model(data[0]), data[1]).item()


def make_data(n, centres):
    y = torch.randint(0, len(centres), (n,))
    x = centres[y] + 0.9 * torch.randn(n, centres.shape[1])
    return x, y


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    centres = 1.2 * torch.randn(8, 10)
    train, test = make_data(1024, centres), make_data(512, centres)
    model = Net(cfg, 10, 8)
    base = [p for n, p in model.named_parameters() if not n.endswith("quant.s")]
    pretrain = torch.optim.SGD(base, lr=cfg.lr, momentum=0.9)
    run_epochs(model, train, pretrain, cfg.float_epochs, cfg.batch_size, "float")

    model.enable_quantization()
    optimizer = torch.optim.SGD(
        [{"params": base, "weight_decay": cfg.weight_decay},
         {"params": list(model.step_sizes().values()), "weight_decay": 0.0}],
        lr=cfg.qat_lr, momentum=0.9)
    run_epochs(model, train, optimizer, cfg.qat_epochs, cfg.batch_size, "qat")
    owned = {id(p) for g in optimizer.param_groups for p in g["params"]}
    trained = sum(id(p) in owned for p in model.step_sizes().values())
    loss = evaluate(model, test)
    print(f"quantized test loss {loss:.4f}")
    return {"test_loss": loss, "step_sizes_in_optimizer": trained}


if __name__ == "__main__":
    main()
