"""Fine-tuning in stages: first the head, then the upper block joins the optimizer with a lower rate; norms stay fixed."""
import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.lower = nn.Sequential(nn.Linear(10, width), nn.BatchNorm1d(width), nn.ReLU())
        self.upper = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x):
        return self.upper(self.lower(x))


class FineTuned(nn.Module):
    def __init__(self, encoder, classes):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, classes))
        self.encoder.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        for module in self.encoder.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, x):
        if not any(p.requires_grad for p in self.encoder.parameters()):
            with torch.no_grad():
                z = self.encoder(x)
        else:
            z = self.encoder(x)
        return self.head(z)

    def unfreeze_upper(self):
        weights = [p for m in self.encoder.upper.modules() if isinstance(m, nn.Linear) for p in m.parameters()]
        for p in weights:
            p.requires_grad_(True)
        return weights


class StagedTrainer:
    def __init__(self, model, head_lr=2e-2, backbone_lr=2e-3, unfreeze_at=3):
        self.model = model
        self.backbone_lr = backbone_lr
        self.unfreeze_at = unfreeze_at
        self.optimizer = torch.optim.SGD(model.head.parameters(), lr=head_lr, momentum=0.9)

    def epoch(self, number, x, y):
        if number == self.unfreeze_at:
            self.optimizer.add_param_group({"params": self.model.unfreeze_upper(), "lr": self.backbone_lr})
        self.model.train()
        for part in torch.randperm(len(x)).split(32):
            loss = nn.functional.cross_entropy(self.model(x[part]), y[part])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.model.eval()
        with torch.no_grad():
            return (self.model(x).argmax(1) == y).float().mean().item()


def pretrained_encoder():
    encoder, top = Encoder(), nn.Linear(16, 10)
    optimizer = torch.optim.Adam([*encoder.parameters(), *top.parameters()], lr=1e-2)
    for _ in range(60):
        x = torch.randn(64, 10)
        optimizer.zero_grad()
        nn.functional.mse_loss(top(encoder(x)), torch.sin(x)).backward()
        optimizer.step()
    return encoder


def main(epochs=6):
    torch.manual_seed(8)
    encoder = pretrained_encoder()
    x = torch.randn(256, 10)
    y = torch.sin(x[:, :3]).add(0.4 * torch.sin(x[:, 3:6])).argmax(1)
    model = FineTuned(encoder, classes=3)
    trainer = StagedTrainer(model)
    for number in range(epochs):
        print(f"epoch {number}: accuracy {trainer.epoch(number, x, y):.3f}")
    return model


if __name__ == "__main__":
    main()
