"""Text classification with FGM: a second backward on perturbed embeddings adds to the first one's gradient."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 40
    dim: int = 20
    classes: int = 3
    batch: int = 16
    length: int = 12
    steps: int = 60
    lr: float = 5e-3
    epsilon: float = 0.5
    max_norm: float = 2.0
    seed: int = 8


class TextCNN(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.word_embedding = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(cfg.dim, 12, k, padding=k // 2) for k in (3, 5))
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(24, cfg.classes)

    def forward(self, ids):
        x = self.word_embedding(ids).transpose(1, 2)
        pooled = [F.relu(conv(x)).amax(dim=-1) for conv in self.convs]
        return self.fc(self.dropout(torch.cat(pooled, dim=1)))


class FGM:
    def __init__(self, model, epsilon, name="word_embedding"):
        self.params = [(n, p) for n, p in model.named_parameters() if name in n]
        self.epsilon, self.backup = epsilon, {}

    def attack(self):
        for name, param in self.params:
            if not param.requires_grad or param.grad is None:
                continue
            self.backup[name] = param.data.clone()
            norm = torch.linalg.vector_norm(param.grad)
            if norm > 0:
                param.data.add_(self.epsilon * param.grad / norm)

    def restore(self):
        for name, param in self.params:
            if name in self.backup:
                param.data.copy_(self.backup[name])
        self.backup = {}


def make_batch(cfg, gen, topic):
    ids = torch.randint(1, cfg.vocab, (cfg.batch, cfg.length), generator=gen)
    lengths = torch.randint(5, cfg.length + 1, (cfg.batch, 1), generator=gen)
    ids = torch.where(torch.arange(cfg.length) < lengths, ids, 0)
    votes = F.one_hot(topic[ids], cfg.classes + 1).sum(1)[:, :cfg.classes]
    return ids, votes.argmax(1)


def make_topic(cfg):
    topic = torch.randint(0, cfg.classes, (cfg.vocab,), generator=torch.Generator().manual_seed(1))
    topic[0] = cfg.classes
    return topic


@torch.no_grad()
def evaluate(model, cfg, topic):
    model.eval()
    gen = torch.Generator().manual_seed(500)
    hits = [(model(ids).argmax(1) == y).float().mean() for ids, y in
            (make_batch(cfg, gen, topic) for _ in range(8))]
    model.train()
    return torch.stack(hits).mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen, topic = torch.Generator().manual_seed(cfg.seed), make_topic(cfg)
    model = TextCNN(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    fgm = FGM(model, cfg.epsilon)
    for step in range(cfg.steps):
        ids, labels = make_batch(cfg, gen, topic)
        loss = F.cross_entropy(model(ids), labels)
        loss.backward()
        fgm.attack()
        F.cross_entropy(model(ids), labels).backward()
        fgm.restore()
        nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == cfg.steps - 1:
            print(f"step {step} loss {loss.item():.4f} acc {evaluate(model, cfg, topic):.3f}")
    return evaluate(model, cfg, topic)


if __name__ == "__main__":
    main()
