"""Autoregressive mel decoder fine-tuned on top of a frozen text encoder."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class TextEncoder(nn.Module):
    def __init__(self, vocab=20, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.bn = nn.BatchNorm1d(dim)

    def forward(self, text):
        return F.relu(self.bn(self.conv(self.embed(text).transpose(1, 2)))).transpose(1, 2)


class Prenet(nn.Module):
    """Two layers whose dropout also stays active during synthesis, as in Tacotron 2."""

    def __init__(self, in_dim, sizes=(32, 32), p=0.5):
        super().__init__()
        dims = (in_dim,) + tuple(sizes)
        self.layers = nn.ModuleList(
            [nn.Linear(a, b, bias=False) for a, b in zip(dims[:-1], dims[1:])])
        self.p = p

    def forward(self, x):
        for linear in self.layers:
            x = F.dropout(F.relu(linear(x)), p=self.p, training=True)
        return x


class Decoder(nn.Module):
    def __init__(self, n_mels=10, enc_dim=24, hidden=48):
        super().__init__()
        self.n_mels = n_mels
        self.prenet = Prenet(n_mels)
        self.rnn = nn.GRUCell(32 + enc_dim, hidden)
        self.dropout = nn.Dropout(0.1)
        self.proj = nn.Linear(hidden + enc_dim, n_mels)
        self.hidden = hidden

    def forward(self, memory, mels=None):
        batch, steps, _ = memory.shape
        h = memory.new_zeros(batch, self.hidden)
        frame = memory.new_zeros(batch, self.n_mels)
        outputs = []
        for t in range(steps):
            h = self.rnn(torch.cat([self.prenet(frame), memory[:, t]], dim=1), h)
            out = self.proj(torch.cat([self.dropout(h), memory[:, t]], dim=1))
            outputs.append(out)
            frame = out if mels is None else mels[:, t]
        return torch.stack(outputs, dim=1)


class Synthesizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = TextEncoder()
        self.decoder = Decoder()
        self.encoder_frozen = False

    def freeze_encoder(self):
        self.encoder_frozen = True
        self.encoder.requires_grad_(False)
        return self.train(self.training)

    def train(self, mode=True):
        super().train(mode)
        if self.encoder_frozen:
            self.encoder.eval()
        return self

    def forward(self, text, mels=None):
        if self.encoder_frozen:
            with torch.no_grad():
                memory = self.encoder(text)
        else:
            memory = self.encoder(text)
        return self.decoder(memory, mels)


def make_batch(batch, length, table, generator):
    text = torch.randint(0, table.shape[0], (batch, length), generator=generator)
    return text, table[text] + 0.05 * torch.randn(batch, length, table.shape[1],
                                                  generator=generator)


def run(model, steps, table, g, lr):
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(params, lr=lr)
    model.train()
    for step in range(steps):
        text, mels = make_batch(16, 10, table, g)
        loss = F.mse_loss(model(text, mels), mels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}  trained tensors {len(params)}")


def synthesize(model, table, g):
    model.eval()
    with torch.no_grad():
        text, mels = make_batch(64, 10, table, g)
        error = F.mse_loss(model(text), mels).item()
    model.train()
    return error


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    source, target = torch.randn(20, 10, generator=g), torch.randn(20, 10, generator=g)
    model = Synthesizer()
    run(model, 90, source, g, lr=5e-3)
    print(f"source voice  synthesis mse {synthesize(model, source, g):.4f}")
    model.freeze_encoder()
    run(model, 90, target, g, lr=5e-3)
    print(f"target voice  synthesis mse {synthesize(model, target, g):.4f}")
    return model


if __name__ == "__main__":
    main()
