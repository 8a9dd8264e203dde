import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class HParams(dict):
    __getattr__ = dict.__getitem__


hp = HParams(input_dim=30, code_dim=6, corruption=0.2, pretrain_epochs=6, finetune_epochs=6, batch=50, lr=5e-3,
             finetune_lr=2e-3, weight_decay=1e-4, seed=13)


class TiedAutoencoder(nn.Module):
    def __init__(self, input_dim, code_dim):
        super().__init__()
        self.encoder = nn.Linear(input_dim, code_dim)
        self.decoder_bias = nn.Parameter(torch.zeros(input_dim))
        nn.init.orthogonal_(self.encoder.weight, gain=math.sqrt(0.5))

    def encode(self, x):
        return torch.tanh(self.encoder(x))

    def decoder(self, code):
        return F.linear(code, self.encoder.weight.t(), self.decoder_bias)

    def forward(self, x):
        return self.decoder(self.encode(x))


class BestModel:
    def __init__(self):
        self.loss, self.model = float("inf"), None

    def update(self, loss, model):
        if loss < self.loss:
            self.loss, self.model = loss, copy.deepcopy(model)


def corrupt(x, p):
    return x * (torch.rand_like(x) > p)


def make_data(n):
    basis = torch.randn(4, hp.input_dim, generator=torch.Generator().manual_seed(0))
    return torch.randn(n, 4) @ basis / 2 + 0.1 * torch.randn(n, hp.input_dim)


def validate(model, data):
    model.eval()
    with torch.no_grad():
        loss = F.mse_loss(model(data), data).item()
    model.train()
    return loss


def fit(model, train, val, epochs, lr, noise):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=hp.weight_decay)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    best = BestModel()
    for epoch in range(epochs):
        for idx in torch.randperm(len(train)).split(hp.batch):
            x = train[idx]
            loss = F.mse_loss(model(corrupt(x, noise) if noise else x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        val_loss = validate(model, val)
        best.update(val_loss, model)
        if (epoch + 1) % 3 == 0:
            print(f"  epoch {epoch + 1}  loss {loss.item():.4f}  val {val_loss:.4f}")
    return best


def tying_error(model, val):
    """How far the decoder is from the transposed encoder, seen from outside as linear maps."""
    with torch.no_grad():
        code = torch.eye(hp.code_dim)
        decoder_map = model.decoder(code) - model.decoder(torch.zeros_like(code))
        return (decoder_map - model.encoder.weight).norm().item()


def main():
    torch.manual_seed(hp.seed)
    train, val = make_data(1000), make_data(300)
    model = TiedAutoencoder(hp.input_dim, hp.code_dim)
    print("pretraining with corrupted inputs")
    best = fit(model, train, val, hp.pretrain_epochs, hp.lr, hp.corruption)
    print("fine-tuning the best model on clean inputs")
    best = fit(best.model, train, val, hp.finetune_epochs, hp.finetune_lr, 0.0)
    n_params = sum(p.numel() for p in best.model.parameters())
    return {"tying_error": tying_error(best.model, val), "parameters": n_params, "val": best.loss}


if __name__ == "__main__":
    main()
