"""Reconstruct images from encoder features by optimizing a generator's latent."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.Tanh(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Tanh())
        self.proj = nn.Linear(16 * 16, 24)

    def forward(self, x):
        return self.proj(self.visual(x).flatten(1))


class FeatureHandle:
    def __init__(self, detach):
        self.detach = detach
        self.outputs = []

    def __call__(self, module, inputs, output):
        self.outputs.append(output.detach().clone() if self.detach else output)

    def pop_last(self):
        out = self.outputs[-1]
        self.outputs.clear()
        return out


class FeatureExtractor:
    """Runs an encoder and returns the outputs of the named layers."""

    def __init__(self, encoder, layers, detach=True):
        self._encoder = encoder
        modules = dict(encoder.named_modules())
        self._handles = {}
        self._hooks = []
        for name in layers:
            handle = FeatureHandle(detach)
            self._hooks.append(modules[name].register_forward_hook(handle))
            self._handles[name] = handle

    def run(self, x):
        self._encoder(x)
        return {name: h.pop_last() for name, h in self._handles.items()}

    def __del__(self):
        for hook in self._hooks:
            hook.remove()


class Generator(nn.Module):
    def __init__(self, latent=20):
        super().__init__()
        self.fc = nn.Linear(latent, 16 * 16)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, z):
        return torch.sigmoid(self.conv(torch.tanh(self.fc(z)).view(-1, 1, 16, 16)))


def encode(stimuli, encoder, layers):
    extractor = FeatureExtractor(encoder, layers, detach=True)
    return [extractor.run(s.unsqueeze(0)) for s in stimuli]


def reconstruct(features, encoder, generator, layers, n_iter=40, lr=0.1):
    extractor = FeatureExtractor(encoder, layers, detach=False)
    z = torch.zeros(1, 20, requires_grad=True)
    optimizer = torch.optim.Adam([z], lr=lr)
    for _ in range(n_iter):
        optimizer.zero_grad()
        image = generator(z)
        feats = extractor.run(image)
        loss = sum(F.mse_loss(feats[k], features[k]) / features[k].pow(2).mean()
                   for k in layers)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return generator(z), loss.item()


def main():
    torch.manual_seed(0)
    encoder, generator = Encoder().eval(), Generator().eval()
    for p in list(encoder.parameters()) + list(generator.parameters()):
        p.requires_grad_(False)
    layers = ["visual.0", "visual.2", "proj"]

    stimuli = generator(torch.randn(12, 20))
    targets = encode(stimuli, encoder, layers)

    errors = []
    for i, target in enumerate(targets):
        image, loss = reconstruct(target, encoder, generator, layers)
        errors.append(F.mse_loss(image[0], stimuli[i]).item())
        print(f"stimulus {i:2d}  feature loss {loss:.4f}  pixel mse {errors[-1]:.5f}")
    print(f"mean pixel mse {sum(errors) / len(errors):.5f}")
    return encoder


if __name__ == "__main__":
    main()
