import torch
import torch.nn.functional as F
from torch import nn


class LitModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.trainer = None
        self.logged = {}

    def log(self, name, value):
        self.logged[name] = float(value)


class Trainer:
    HOOKS = (
        "on_fit_start",
        "on_train_epoch_start",
        "on_train_epoch_end",
        "on_validation_epoch_start",
        "on_validation_epoch_end",
        "on_fit_end",
    )

    def __init__(self, max_epochs, gradient_clip_val=None):
        self.max_epochs = max_epochs
        self.clip = gradient_clip_val
        self.current_epoch = 0

    def call_hook(self, module, name, *args):
        if name not in self.HOOKS:
            raise ValueError(name)
        fn = getattr(module, name, None)
        return fn(*args) if callable(fn) else None

    def fit(self, module, train_batches, val_batches):
        module.trainer = self
        optimizer = module.configure_optimizers()
        self.call_hook(module, "on_fit_start")
        for self.current_epoch in range(self.max_epochs):
            module.train()
            self.call_hook(module, "on_train_epoch_start")
            for i, batch in enumerate(train_batches()):
                loss = module.training_step(batch, i)
                optimizer.zero_grad()
                loss.backward()
                if self.clip is not None:
                    nn.utils.clip_grad_norm_(module.parameters(), self.clip)
                optimizer.step()
            self.call_hook(module, "on_train_epoch_end")
            self.validate(module, val_batches)
        self.call_hook(module, "on_fit_end")

    @torch.no_grad()
    def validate(self, module, val_batches):
        module.eval()
        self.call_hook(module, "on_validation_epoch_start")
        for i, batch in enumerate(val_batches()):
            module.validation_step(batch, i)
        self.call_hook(module, "on_validation_epoch_end")


class LitEma(nn.Module):
    def __init__(self, model, decay):
        super().__init__()
        self.decay = decay
        self.names = {n: n.replace(".", "_") for n, _ in model.named_parameters()}
        for name, p in model.named_parameters():
            self.register_buffer(self.names[name], p.detach().clone())

    @torch.no_grad()
    def forward(self, model):
        shadow = dict(self.named_buffers())
        for name, p in model.named_parameters():
            shadow[self.names[name]].lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def copy_to(self, model):
        shadow = dict(self.named_buffers())
        for name, p in model.named_parameters():
            p.copy_(shadow[self.names[name]])


class AutoencoderKL(nn.Module):
    def __init__(self, channels=16, z=4):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, channels, 3, 2, 1), nn.SiLU(), nn.Conv2d(channels, 2 * z, 3, 2, 1)
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(z, channels, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(channels, 1, 4, 2, 1)
        )

    def forward(self, x):
        mean, logvar = self.encoder(x).chunk(2, dim=1)
        logvar = logvar.clamp(-10, 10)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp() if self.training else mean
        kl = 0.5 * (mean**2 + logvar.exp() - 1 - logvar).mean()
        return self.decoder(z), kl


class FinetuneVAE(LitModule):
    def __init__(self, lr=3e-3, kl_weight=1e-3, ema_decay=0.8):
        super().__init__()
        self.lr = lr
        self.kl_weight = kl_weight
        self.model = AutoencoderKL()
        self.model_ema = LitEma(self.model, ema_decay)
        self.export = AutoencoderKL()
        self.errors = []

    def configure_optimizers(self):
        return torch.optim.AdamW(self.model.parameters(), lr=self.lr)

    def training_step(self, batch, batch_idx):
        rec, kl = self.model(batch)
        loss = F.mse_loss(rec, batch) + self.kl_weight * kl
        self.log("train_loss", loss.detach())
        return loss

    def train_epoch_end(self):
        self.model_ema(self.model)

    def on_validation_epoch_start(self):
        self.errors = []

    def validation_step(self, batch, batch_idx):
        rec, _ = self.model(batch)
        self.errors.append(F.mse_loss(rec, batch).item())

    def on_validation_epoch_end(self):
        self.log("val_rec", sum(self.errors) / len(self.errors))
        print(self.trainer.current_epoch, {k: round(v, 4) for k, v in self.logged.items()})

    def on_fit_end(self):
        self.model_ema.copy_to(self.export)


def waves(n, generator):
    phase = torch.rand(n, 1, 1, 1, generator=generator) * 6.28
    tilt = torch.rand(n, 1, 1, 1, generator=generator)
    grid = torch.linspace(0, 6.28, 16)
    return torch.sin(grid[None, None, None, :] + tilt * grid[None, None, :, None] + phase)


def main():
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(3)
    data, held = waves(256, gen), waves(64, gen)
    module = FinetuneVAE()
    trainer = Trainer(max_epochs=12, gradient_clip_val=1.0)
    trainer.fit(module, lambda: data[torch.randperm(len(data))].split(32), lambda: held.split(32))
    with torch.no_grad():
        rec, _ = module.export.eval()(held)
        print("export", round(F.mse_loss(rec, held).item(), 4))


if __name__ == "__main__":
    main()
