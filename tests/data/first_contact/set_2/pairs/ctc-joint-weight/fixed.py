"""Joint frame-classification / CTC training of a tiny recogniser with a wrapped CTC kernel."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


@dataclass
class HParams:
    symbols: int = 6
    frames: int = 24
    features: int = 10
    labels: int = 6
    hidden: int = 32
    ctc_weight: float = 0.02
    grad_accum: int = 2
    lr: float = 0.05
    batch: int = 8
    steps: int = 120
    seed: int = 5


class _CTC(Function):
    """The kernel computes costs and gradients of the activations in one pass, as warp-ctc does."""

    @staticmethod
    def forward(ctx, acts, labels, act_lens, label_lens):
        with torch.enable_grad():
            leaf = acts.detach().requires_grad_(True)
            costs = F.ctc_loss(leaf.log_softmax(-1), labels, act_lens, label_lens, reduction="sum")
            (grads,) = torch.autograd.grad(costs, leaf)
        ctx.save_for_backward(grads)
        return costs.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (grads,) = ctx.saved_tensors
        return grads * grad_output, None, None, None


class CTCLoss(nn.Module):
    def __init__(self, size_average=True):
        super().__init__()
        self.size_average = size_average

    def forward(self, acts, labels, act_lens, label_lens):
        cost = _CTC.apply(acts, labels, act_lens, label_lens)
        return cost / acts.shape[1] if self.size_average else cost


class Recognizer(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.encoder = nn.GRU(hp.features, hp.hidden, batch_first=True)
        self.frame_head = nn.Linear(hp.hidden, hp.symbols)
        self.ctc_head = nn.Linear(hp.hidden, hp.symbols)

    def forward(self, x):
        hidden, _ = self.encoder(x)
        return self.frame_head(hidden), self.ctc_head(hidden).transpose(0, 1)


class SyntheticSpeech:
    def __init__(self, hp):
        self.hp = hp
        self.prototypes = torch.randn(hp.symbols, hp.features)

    def batch(self):
        hp = self.hp
        labels = torch.randint(1, hp.symbols, (hp.batch, hp.labels))
        frames = labels.repeat_interleave(hp.frames // hp.labels, dim=1)
        audio = self.prototypes[frames] + 1.0 * torch.randn(hp.batch, hp.frames, hp.features)
        return audio, frames, labels


def target(acts):
    labels = torch.tensor([[1, 2], [3, 1]])
    loss = CTCLoss()(acts, labels, torch.tensor([5, 5]), torch.tensor([2, 2]))
    return 0.3 * loss


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(5, 2, 4, dtype=torch.float64, generator=generator, requires_grad=True),)


def main(hp=HParams()):
    torch.manual_seed(hp.seed)
    data = SyntheticSpeech(hp)
    model = Recognizer(hp)
    ctc = CTCLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=hp.lr, momentum=0.9)
    act_lens = torch.full((hp.batch,), hp.frames)
    label_lens = torch.full((hp.batch,), hp.labels)
    accuracy = 0.0
    for step in range(1, hp.steps + 1):
        optimizer.zero_grad()
        for _ in range(hp.grad_accum):
            audio, frames, labels = data.batch()
            frame_logits, acts = model(audio)
            frame_loss = F.cross_entropy(frame_logits.flatten(0, 1), frames.flatten())
            ctc_loss = ctc(acts, labels, act_lens, label_lens)
            loss = (frame_loss + hp.ctc_weight * ctc_loss) / hp.grad_accum
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 40 == 0:
            with torch.no_grad():
                audio, frames, _ = data.batch()
                accuracy = (model(audio)[0].argmax(-1) == frames).float().mean().item()
            print(f"step {step}  frame {frame_loss.item():.3f}  ctc {ctc_loss.item():.3f}  acc {accuracy:.3f}")
    return {"frame_loss": frame_loss.item(), "ctc_loss": ctc_loss.item(), "accuracy": accuracy, "model": model}


if __name__ == "__main__":
    main()
