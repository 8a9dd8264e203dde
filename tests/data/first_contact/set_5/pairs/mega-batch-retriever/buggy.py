"""Bi-encoder with a margin loss: hard negatives are mined in a mega-batch, encoded in mini-batches."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, vocab=200, dim=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))

    def forward(self, tokens):
        return F.normalize(self.proj(self.bag(tokens)), dim=-1)


class MegaBatchMarginLoss(nn.Module):
    def __init__(self, encoder, positive_margin=0.8, negative_margin=0.3, mini_batch_size=16):
        super().__init__()
        self.encoder = encoder
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin
        self.mini_batch_size = mini_batch_size

    def forward(self, anchor, positive):
        with torch.no_grad():
            self.encoder.eval()
            all_positive_emb = torch.cat([
                self.encoder(positive[s:s + self.mini_batch_size])
                for s in range(0, len(positive), self.mini_batch_size)
            ])
            self.encoder.train()

        own = torch.eye(len(all_positive_emb))
        total = len(all_positive_emb)
        for start_idx in range(0, total, self.mini_batch_size):
            end_idx = start_idx + self.mini_batch_size
            anchor_emb = self.encoder(anchor[start_idx:end_idx])

            with torch.no_grad():
                cos_scores = anchor_emb @ all_positive_emb.t()
                negative_scores = cos_scores - 2 * own[start_idx:end_idx]
                hardest = negative_scores.argmax(dim=1)

            pos_emb = self.encoder(positive[start_idx:end_idx])
            neg_emb = self.encoder(positive[hardest])
            pos_cosine = (anchor_emb * pos_emb).sum(-1)
            neg_cosine = (anchor_emb * neg_emb).sum(-1)
            losses = F.relu(self.positive_margin - pos_cosine) + F.relu(neg_cosine - self.negative_margin)
            losses = losses.sum() / total

            # the outer loop calls backward on what is returned
            if end_idx < len(cos_scores):
                losses.backward()
        return losses


class PairData:
    """A query and its passage share topic tokens."""

    def __init__(self, n_topics=60, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.topics = torch.randint(200, (n_topics, 10), generator=self.g)

    def _draw(self, topic):
        pick = torch.randint(10, (len(topic), 6), generator=self.g)
        noise = torch.randint(200, (len(topic), 2), generator=self.g)
        return torch.cat([self.topics[topic].gather(1, pick), noise], 1)

    def batch(self, n):
        topic = torch.randperm(len(self.topics), generator=self.g)[:n]
        return self._draw(topic), self._draw(topic)


@torch.no_grad()
def recall_at_1(encoder, data):
    encoder.eval()
    a, p = data.batch(60)
    hit = (encoder(a) @ encoder(p).t()).argmax(1) == torch.arange(60)
    encoder.train()
    return hit.float().mean().item()


def fit(encoder, data, steps=60, mega_batch=48, lr=5e-3):
    criterion = MegaBatchMarginLoss(encoder)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=lr)
    for step in range(steps):
        anchor, positive = data.batch(mega_batch)
        optimizer.zero_grad()
        loss = criterion(anchor, positive)
        loss.backward()
        nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
    return criterion


def main():
    torch.manual_seed(0)
    data = PairData()
    encoder = Encoder()
    before = recall_at_1(encoder, data)
    criterion = fit(encoder, data)
    after = recall_at_1(encoder, data)
    print(f"recall@1 {before:.3f} -> {after:.3f}")
    return encoder, criterion, after


if __name__ == "__main__":
    main()
