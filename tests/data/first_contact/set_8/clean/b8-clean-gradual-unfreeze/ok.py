"""Sequential recommender: pre-training, then gradual unfreezing with layer-wise rates, EMA weights and a memory."""
import copy

import torch
import torch.nn.functional as F
from torch import nn


class SeqEncoder(nn.Module):
    def __init__(self, n_items=50, dim=24, max_len=10):
        super().__init__()
        self.items = nn.Embedding(n_items + 1, dim, padding_idx=0)
        self.positions = nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(dim, 2, 48, dropout=0.1, batch_first=True) for _ in range(2)]
        )

    def forward(self, seq):
        h = self.items(seq) + self.positions.weight[: seq.shape[1]]
        mask = seq == 0
        for block in self.blocks:
            h = block(h, src_key_padding_mask=mask)
        h = h.masked_fill(mask.unsqueeze(-1), 0.0)
        return h.sum(1) / (~mask).sum(1, keepdim=True)


class Ranker(nn.Module):
    def __init__(self, encoder, dim=24, n_items=50):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(dim, n_items + 1)

    def forward(self, seq):
        return self.head(self.encoder(seq))


class Memory:
    """Recent user vectors, used as negatives of a contrastive term."""

    def __init__(self, size, dim):
        self.bank = F.normalize(torch.randn(size, dim), dim=1)
        self.cursor = 0

    @torch.no_grad()
    def push(self, vectors):
        index = (self.cursor + torch.arange(len(vectors))) % len(self.bank)
        self.bank[index] = vectors
        self.cursor = int((self.cursor + len(vectors)) % len(self.bank))


class EMA:
    def __init__(self, model, decay=0.95):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.state_dict().values(), model.state_dict().values()):
            if s.dtype.is_floating_point:
                s.lerp_(p, 1 - self.decay)
            else:
                s.copy_(p)


def make_sequences(n, seed, n_items=50, length=8):
    g = torch.Generator().manual_seed(seed)
    stride = torch.randint(1, 4, (n, 1), generator=g)
    start = torch.randint(0, n_items, (n, 1), generator=g)
    seq = (start + stride * torch.arange(length + 1)) % n_items + 1
    cut = torch.randint(0, 4, (n, 1), generator=g)
    inputs = seq[:, :-1].masked_fill(torch.arange(length) < cut, 0)
    return inputs, seq[:, -1]


def pretrain(encoder, seqs, steps=40):
    projector = nn.Linear(24, 24)
    memory = Memory(128, 24)
    optimizer = torch.optim.Adam([*encoder.parameters(), *projector.parameters()], lr=2e-3)
    encoder.train()
    for _ in range(steps):
        seq = seqs[torch.randint(0, len(seqs), (32,))]
        a = F.normalize(projector(encoder(seq)), dim=1)
        with torch.no_grad():
            b = F.normalize(projector(encoder(seq)), dim=1)
        logits = torch.cat([(a * b).sum(1, keepdim=True), a @ memory.bank.clone().t()], 1) / 0.2
        loss = F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.push(b)
    print(f"pretraining loss {loss.item():.4f}")


def finetune(model, data, valid, epochs=6):
    for p in model.encoder.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
    ema = EMA(model)
    stages = {2: model.encoder.blocks[1], 3: model.encoder.blocks[0], 4: model.encoder.items}
    for epoch in range(epochs):
        if epoch in stages:
            stage = stages[epoch]
            stage.requires_grad_(True)
            optimizer.add_param_group({"params": list(stage.parameters()), "lr": 4e-3 / (epoch - 1)})
        model.train()
        seqs, targets = data
        for index in torch.randperm(len(seqs)).split(64):
            loss = F.cross_entropy(model(seqs[index]), targets[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
        model.eval()
        with torch.no_grad():
            raw = (model(valid[0]).argmax(1) == valid[1]).float().mean().item()
            averaged = (ema.shadow(valid[0]).argmax(1) == valid[1]).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.4f} hit {raw:.3f} averaged {averaged:.3f}")
    return ema.shadow


def main():
    torch.manual_seed(0)
    data, valid = make_sequences(512, 1), make_sequences(128, 2)
    encoder = SeqEncoder()
    pretrain(encoder, data[0])
    return finetune(Ranker(encoder), data, valid)


if __name__ == "__main__":
    main()
