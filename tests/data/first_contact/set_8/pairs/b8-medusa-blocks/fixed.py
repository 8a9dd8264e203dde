"""Extra decoding heads on a frozen language model, each of them a few residual blocks and a projection."""
import torch
import torch.nn.functional as F
from torch import nn


class MedusaConfig:
    medusa_num_heads = 3
    medusa_num_layers = 3
    hidden_size = 32
    vocab_size = 30


class BaseLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rnn = nn.GRU(config.hidden_size, config.hidden_size, batch_first=True)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids):
        hidden, _ = self.rnn(self.embed(ids))
        return hidden, self.lm_head(hidden)


class ResBlock(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        self.act = nn.SiLU()

    def forward(self, x):
        return x + self.act(self.linear(x))


class MedusaModel(nn.Module):
    def __init__(self, base, config):
        super().__init__()
        self.config = config
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.medusa_head = nn.ModuleList(
            [
                nn.Sequential(
                    *[ResBlock(config.hidden_size) for _ in range(config.medusa_num_layers)],
                    nn.Linear(config.hidden_size, config.vocab_size, bias=False),
                )
                for _ in range(config.medusa_num_heads)
            ]
        )
        for head in self.medusa_head:
            with torch.no_grad():
                head[-1].weight.copy_(self.base.lm_head.weight)

    def train(self, mode=True):
        super().train(mode)
        self.base.eval()
        return self

    def forward(self, ids):
        with torch.no_grad():
            hidden, _ = self.base(ids)
        return torch.stack([head(hidden) for head in self.medusa_head])


def medusa_loss(logits, ids, decay=0.8):
    loss, per_head = 0.0, []
    for i, head_logits in enumerate(logits):
        shift = i + 2
        value = F.cross_entropy(head_logits[:, :-shift].flatten(0, 1), ids[:, shift:].flatten())
        per_head.append(value.item())
        loss = loss + decay**i * value
    return loss, per_head


def make_sequences(config, n=192, length=20, seed=0):
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(0, config.vocab_size, (config.vocab_size, 3), generator=g)
    ids = torch.randint(0, config.vocab_size, (n, 1), generator=g)
    for _ in range(length - 1):
        pick = torch.multinomial(torch.tensor([0.9, 0.07, 0.03]), n, replacement=True, generator=g)
        ids = torch.cat([ids, table[ids[:, -1], pick].unsqueeze(1)], 1)
    return ids


def pretrain(base, data, steps=80):
    optimizer = torch.optim.Adam(base.parameters(), lr=1e-2)
    for step in range(steps):
        ids = data[torch.randint(0, len(data), (32,))]
        _, logits = base(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"base loss {loss.item():.4f}")


def train_heads(model, data, steps=120):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    model.train()
    for step in range(1, steps + 1):
        ids = data[torch.randint(0, len(data), (32,))]
        loss, per_head = medusa_loss(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.medusa_head.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 30 == 0:
            print(f"step {step} " + " ".join(f"head{i} {v:.4f}" for i, v in enumerate(per_head)))


def main():
    torch.manual_seed(0)
    config = MedusaConfig()
    data = make_sequences(config)
    base = BaseLM(config)
    pretrain(base, data)
    model = MedusaModel(base, config)
    train_heads(model, data)
    n = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"trainable parameters {n}")
    return model


if __name__ == "__main__":
    main()
