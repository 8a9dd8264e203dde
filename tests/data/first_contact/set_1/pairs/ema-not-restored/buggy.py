"""Frame-sequence classifier with an exponential moving average of the weights used for validation."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    seed: int = 8
    max_train_steps: int = 200
    train_batch_size: int = 24
    learning_rate: float = 2e-3
    ema_decay: float = 0.995
    validation_steps: int = 20
    checkpointing_steps: int = 100
    use_ema: bool = True


class EMAModel:
    def __init__(self, parameters, decay):
        self.decay = decay
        self.shadow_params = [p.clone().detach() for p in parameters]
        self.temp_stored_params = None
        self.optimization_step = 0

    @torch.no_grad()
    def step(self, parameters):
        self.optimization_step += 1
        for s_param, param in zip(self.shadow_params, parameters):
            s_param.sub_((1 - self.decay) * (s_param - param))

    def store(self, parameters):
        self.temp_stored_params = [p.detach().cpu().clone() for p in parameters]

    def copy_to(self, parameters):
        for s_param, param in zip(self.shadow_params, parameters):
            param.data.copy_(s_param.data)

    def restore(self, parameters):
        if self.temp_stored_params is None:
            raise RuntimeError("This EMAModel has no `store()`ed weights to `restore()`")
        for c_param, param in zip(self.temp_stored_params, parameters):
            param.data.copy_(c_param.data)
        self.temp_stored_params = None


class FrameNet(nn.Module):
    def __init__(self, channels=6, hidden=32, classes=4):
        super().__init__()
        self.conv1 = nn.Conv1d(channels, hidden, 3, padding=1)
        self.conv2 = nn.Conv1d(hidden, hidden, 3, padding=2, dilation=2)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        h = F.silu(self.conv1(x))
        h = h + F.silu(self.conv2(h))
        return self.head(self.norm(h.mean(-1)))


def make_clips(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    t = torch.arange(16, dtype=torch.float32)
    phase = torch.rand(n, 6, 1, generator=g) * 6.28
    speed = (0.4 + 0.35 * y.float()).view(-1, 1, 1)
    return torch.sin(speed * t + phase) + 0.9 * torch.randn(n, 6, 16, generator=g), y


@torch.no_grad()
def run_validation(model, data):
    was_training = model.training
    model.eval()
    logits = model(data[0])
    model.train(was_training)
    return F.cross_entropy(logits, data[1]).item(), (logits.argmax(1) == data[1]).float().mean().item()


def main(args=Args()):
    torch.manual_seed(args.seed)
    model = FrameNet()
    ema_model = EMAModel(model.parameters(), args.ema_decay) if args.use_ema else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=1e-2)
    train, val = make_clips(512, 1), make_clips(192, 2)
    checkpoints, log = {}, []
    model.train()
    for global_step in range(1, args.max_train_steps + 1):
        idx = torch.randint(len(train[0]), (args.train_batch_size,))
        loss = F.cross_entropy(model(train[0][idx]), train[1][idx])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if ema_model is not None:
            ema_model.step(model.parameters())
        log.append(loss.item())

        if global_step % args.checkpointing_steps == 0:
            checkpoints[global_step] = {k: v.clone() for k, v in model.state_dict().items()}

        if global_step % args.validation_steps == 0:
            if ema_model is not None:
                ema_model.store(model.parameters())
                ema_model.copy_to(model.parameters())
            val_loss, val_acc = run_validation(model, val)
            if global_step % (2 * args.validation_steps) == 0:
                print(f"step {global_step} loss {sum(log[-20:]) / 20:.4f} val {val_loss:.4f} acc {val_acc:.3f}")
    return {"train": sum(log[-20:]) / 20, "val": val_loss, "acc": val_acc, "checkpoints": checkpoints}


if __name__ == "__main__":
    main()
