import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class ConvNextBlock(nn.Module):
    def __init__(self, c_in, c_out, use_checkpoint=True):
        super().__init__()
        self.use_checkpoint = use_checkpoint
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm2d(c_out)
        self.mix = nn.Sequential(nn.Conv2d(c_out, 2 * c_out, 1), nn.GELU())
        self.out = nn.Conv2d(2 * c_out, c_out, 1)

    def _tail(self, x, hidden):
        return self.skip(x) + self.out(self.mix(F.gelu(hidden)))

    def forward(self, x):
        if not self.use_checkpoint:
            return self._tail(x, self.norm(self.conv(x)))
        hidden = self.norm(checkpoint(self.conv, x, use_reentrant=False))
        return checkpoint(self._tail, x, hidden, use_reentrant=False)


class UNetBackbone(nn.Module):
    def __init__(self, c_in, widths=(12, 24)):
        super().__init__()
        self.down1 = ConvNextBlock(c_in, widths[0])
        self.down2 = ConvNextBlock(widths[0], widths[1])
        self.up = nn.ConvTranspose2d(widths[1], widths[0], 2, stride=2)
        self.merge = ConvNextBlock(2 * widths[0], widths[0])

    def forward(self, x):
        fine = self.down1(x)
        coarse = self.down2(F.avg_pool2d(fine, 2))
        return self.merge(torch.cat([fine, self.up(coarse)], dim=1))


class OceanEmulator(nn.Module):
    def __init__(self, variables=3):
        super().__init__()
        self.backbone = UNetBackbone(variables)
        self.decoder = nn.Conv2d(12, variables, 1)

    def forward(self, state):
        return state + self.decoder(self.backbone(state))


def true_step(state):
    temperature, salinity, velocity = state.unbind(1)
    flow = 0.3 * torch.tanh(velocity)
    temperature = temperature + flow * (temperature.roll(1, -1) - temperature)
    salinity = salinity + flow * (salinity.roll(1, -2) - salinity)
    velocity = 0.95 * velocity + 0.1 * (temperature - salinity)
    return torch.stack([temperature, salinity, velocity], dim=1)


def smooth_fields(n, size, generator):
    coarse = torch.randn(n, 3, size // 4, size // 4, generator=generator)
    fields = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)
    gain = torch.rand(n, 1, 1, 1, generator=generator) * 3.0
    return fields * gain


class Trainer:
    def __init__(self, model, lr, batch_size):
        self.model = model
        self.batch_size = batch_size
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=4)

    def run_epoch(self, states):
        self.model.train()
        running = 0.0
        batches = torch.randperm(len(states)).split(self.batch_size)
        for pick in batches:
            state = states[pick]
            loss = F.mse_loss(self.model(state), true_step(state))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            running += loss.item()
        self.scheduler.step()
        return running / len(batches)

    @torch.no_grad()
    def rollout_error(self, states, n_steps=4):
        self.model.eval()
        truth, predicted, error = states, states, 0.0
        for _ in range(n_steps):
            truth, predicted = true_step(truth), self.model(predicted)
            error += F.mse_loss(predicted, truth).item()
        return error / n_steps


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    train, valid = smooth_fields(120, 16, generator), smooth_fields(48, 16, generator)
    model = OceanEmulator()
    trainer = Trainer(model, lr=3e-3, batch_size=4)
    for epoch in range(4):
        loss = trainer.run_epoch(train)
        error = trainer.rollout_error(valid)
        print(f"epoch {epoch} train {loss:.4f} rollout {error:.4f}")


if __name__ == "__main__":
    main()
