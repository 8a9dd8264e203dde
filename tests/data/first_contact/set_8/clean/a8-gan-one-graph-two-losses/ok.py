import torch
import torch.nn.functional as F
from torch import nn


class MultiScaleDiscriminator(nn.Module):
    def __init__(self, width=16, scales=2):
        super().__init__()
        self.parts = nn.ModuleList()
        for _ in range(scales):
            self.parts.append(nn.ModuleList([
                nn.Conv1d(1, width, 9, stride=2, padding=4),
                nn.Conv1d(width, width, 5, stride=2, padding=2),
                nn.Conv1d(width, 1, 3, padding=1),
            ]))

    def forward(self, x):
        outputs = []
        for part in self.parts:
            h, features = x, []
            for layer in part:
                h = layer(h)
                if layer is not part[-1]:
                    h = F.leaky_relu(h, 0.2)
                    features.append(h)
            outputs.append((h, features))
            x = F.avg_pool1d(x, 2)
        return outputs


class Vocoder(nn.Module):
    def __init__(self, n_mels=8, width=24):
        super().__init__()
        self.inp = nn.Conv1d(n_mels, width, 3, padding=1)
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(width, width, 8, stride=4, padding=2) for _ in range(2)
        )
        self.out = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel):
        h = self.inp(mel)
        for layer in self.up:
            h = layer(F.leaky_relu(h, 0.1))
        return torch.tanh(self.out(F.leaky_relu(h, 0.1)))


def requires_grad(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


class VocoderTrainer:
    def __init__(self, lr=1e-3, lambda_fm=2.0, lambda_stft=5.0):
        self.g, self.d = Vocoder(), MultiScaleDiscriminator()
        self.opt_g = torch.optim.AdamW(self.g.parameters(), lr=lr, betas=(0.8, 0.99))
        self.opt_d = torch.optim.AdamW(self.d.parameters(), lr=lr, betas=(0.8, 0.99))
        self.lambda_fm, self.lambda_stft = lambda_fm, lambda_stft
        self.window = torch.hann_window(64)

    def spectrum(self, wave):
        spec = torch.stft(wave.squeeze(1), 64, 16, window=self.window, return_complex=True)
        return torch.sqrt(spec.real.square() + spec.imag.square() + 1e-7)

    def discriminator_step(self, fake, real):
        requires_grad(self.d, True)
        self.opt_d.zero_grad()
        loss = 0.0
        for (r, _), (f, _) in zip(self.d(real), self.d(fake.detach())):
            loss = loss + (1 - r).square().mean() + f.square().mean()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def generator_step(self, fake, real):
        requires_grad(self.d, False)
        self.opt_g.zero_grad()
        stft = (self.spectrum(fake) - self.spectrum(real)).abs().mean()
        (self.lambda_stft * stft).backward(retain_graph=True)
        adversarial, matching = 0.0, 0.0
        with torch.no_grad():
            reference = self.d(real)
        for (f, features), (_, targets) in zip(self.d(fake), reference):
            adversarial = adversarial + (1 - f).square().mean()
            for a, b in zip(features, targets):
                matching = matching + (a - b).abs().mean()
        (adversarial + self.lambda_fm * matching).backward()
        self.opt_g.step()
        return stft.item()


def make_waves(n, length=256):
    time = torch.arange(length) / length
    pitch = 4 + 20 * torch.rand(n, 1)
    wave = 0.6 * torch.sin(2 * torch.pi * pitch * time) * (0.5 + 0.5 * time)
    frames = wave.view(n, 16, 16).transpose(1, 2)
    mel = frames.reshape(n, 8, 2, 16).abs().mean(2)
    return wave.unsqueeze(1), torch.log(mel + 1e-3)


def main():
    torch.manual_seed(0)
    waves, mels = make_waves(96)
    trainer = VocoderTrainer()
    for epoch in range(5):
        for pick in torch.randperm(len(waves)).split(12):
            fake = trainer.g(mels[pick])
            d_loss = trainer.discriminator_step(fake, waves[pick])
            stft = trainer.generator_step(fake, waves[pick])
        print(f"epoch {epoch} d {d_loss:.3f} stft {stft:.4f}")


if __name__ == "__main__":
    main()
