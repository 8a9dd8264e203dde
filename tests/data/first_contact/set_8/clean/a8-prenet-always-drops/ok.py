import torch
import torch.nn.functional as F
from torch import nn


class Prenet(nn.Module):
    def __init__(self, d_in, sizes, p=0.5):
        super().__init__()
        dims = [d_in, *sizes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.p = p

    def forward(self, x):
        # Tacotron 2, section 2.2: dropout is applied at inference as well, for variation
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), p=self.p, training=True)
        return x


class Decoder(nn.Module):
    def __init__(self, n_mels, d_text, hidden=48):
        super().__init__()
        self.prenet = Prenet(n_mels, (32, 32))
        self.attention_rnn = nn.GRUCell(32 + d_text, hidden)
        self.query = nn.Linear(hidden, d_text, bias=False)
        self.mel = nn.Linear(hidden + d_text, n_mels)
        self.gate = nn.Linear(hidden + d_text, 1)
        self.n_mels, self.hidden = n_mels, hidden

    def step(self, frame, state, memory):
        hidden, context = state
        hidden = self.attention_rnn(torch.cat([self.prenet(frame), context], dim=1), hidden)
        energy = torch.einsum("bd,btd->bt", self.query(hidden), memory) / memory.shape[-1] ** 0.5
        context = torch.einsum("bt,btd->bd", energy.softmax(1), memory)
        features = torch.cat([hidden, context], dim=1)
        return self.mel(features), self.gate(features).squeeze(1), (hidden, context)

    def initial(self, memory):
        batch = memory.shape[0]
        state = (memory.new_zeros(batch, self.hidden), memory.new_zeros(batch, memory.shape[2]))
        return memory.new_zeros(batch, self.n_mels), state

    def forward(self, memory, mels):
        frame, state = self.initial(memory)
        outputs, gates = [], []
        for t in range(mels.shape[1]):
            out, gate, state = self.step(frame, state, memory)
            outputs.append(out)
            gates.append(gate)
            frame = mels[:, t]
        return torch.stack(outputs, dim=1), torch.stack(gates, dim=1)

    @torch.no_grad()
    def inference(self, memory, max_frames):
        frame, state = self.initial(memory)
        outputs = []
        for _ in range(max_frames):
            frame, gate, state = self.step(frame, state, memory)
            outputs.append(frame)
            if (gate.sigmoid() > 0.5).all():
                break
        return torch.stack(outputs, dim=1)


class Tacotron(nn.Module):
    def __init__(self, n_symbols, n_mels, d_text=32):
        super().__init__()
        self.embedding = nn.Embedding(n_symbols, d_text)
        self.encoder = nn.Sequential(
            nn.Conv1d(d_text, d_text, 5, padding=2), nn.BatchNorm1d(d_text), nn.ReLU(),
            nn.Dropout(0.3),
        )
        self.decoder = Decoder(n_mels, d_text)

    def encode(self, text):
        return self.encoder(self.embedding(text).transpose(1, 2)).transpose(1, 2)

    def forward(self, text, mels):
        return self.decoder(self.encode(text), mels)


def loss_fn(mel, gate, target):
    stop = torch.zeros_like(gate)
    stop[:, -1] = 1.0
    return F.mse_loss(mel, target) + F.binary_cross_entropy_with_logits(gate, stop)


def make_corpus(n, frames=14, n_symbols=12, n_mels=10):
    text = torch.randint(0, n_symbols, (n, 7))
    voice = torch.randn(n_symbols, n_mels)
    mels = voice[text].repeat_interleave(2, dim=1)[:, :frames]
    return text, mels + 0.05 * torch.randn_like(mels)


def main():
    torch.manual_seed(0)
    text, mels = make_corpus(128)
    model = Tacotron(12, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-6)
    for epoch in range(6):
        model.train()
        total = 0.0
        for pick in torch.randperm(112).split(16):
            optimizer.zero_grad()
            loss = loss_fn(*model(text[pick], mels[pick]), mels[pick])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            valid = loss_fn(*model(text[112:], mels[112:]), mels[112:]).item()
        print(f"epoch {epoch} train {total / 7:.4f} valid {valid:.4f}")
    model.eval()
    with torch.no_grad():
        spoken = model.decoder.inference(model.encode(text[:2]), 20)
    print(f"generated {spoken.shape[1]} frames")


if __name__ == "__main__":
    main()
