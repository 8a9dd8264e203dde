"""A small transformer on sequences, validated after each epoch."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class FlashSelfAttention(nn.Module):
    """Fused scaled dot product attention with dropout on the attention weights."""

    def __init__(self, causal=False, attention_dropout=0.0):
        super().__init__()
        self.causal = causal
        self.dropout_p = attention_dropout

    def forward(self, q, k, v):
        self.dropout_p = self.dropout_p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout_p, is_causal=self.causal)


class ParallelAttention(nn.Module):
    def __init__(self, hidden, heads, attention_dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.core = FlashSelfAttention(causal=True, attention_dropout=attention_dropout)
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, x):
        b, s, h = x.shape
        qkv = self.qkv(x).view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        context = self.core(qkv[0], qkv[1], qkv[2])
        return self.dense(context.transpose(1, 2).reshape(b, s, h))


class Layer(nn.Module):
    def __init__(self, hidden, heads, attention_dropout):
        super().__init__()
        self.ln1 = nn.LayerNorm(hidden)
        self.attention = ParallelAttention(hidden, heads, attention_dropout)
        self.ln2 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Model(nn.Module):
    def __init__(self, vocab=16, hidden=32, heads=4, layers=2, attention_dropout=0.3):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, attention_dropout) for _ in range(layers))
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def sequences(n, seed):
    g = torch.Generator().manual_seed(seed)
    start, stride = torch.randint(0, 16, (2, n, 1), generator=g)
    return (start + stride * torch.arange(12)) % 16


def lm_loss(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def evaluate(model, tokens):
    model.eval()
    with torch.no_grad():
        return lm_loss(model, tokens).item()


def train_epoch(model, optimizer, tokens, batch=32):
    model.train()
    for part in torch.randperm(len(tokens)).split(batch):
        optimizer.zero_grad()
        loss = lm_loss(model, tokens[part])
        loss.backward()
        optimizer.step()
    return loss.item()


def main(epochs=4):
    torch.manual_seed(17)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train, valid = sequences(192, 1), sequences(64, 2)
    for epoch in range(epochs):
        loss = train_epoch(model, optimizer, train)
        print(f"epoch {epoch}: train {loss:.4f} valid {evaluate(model, valid):.4f}")
    return model, train


if __name__ == "__main__":
    main()
