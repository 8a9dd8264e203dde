import torch
import torch.nn.functional as F
from torch import nn


class Prenet(nn.Module):
    def __init__(self, in_dim, sizes, p=0.5):
        super().__init__()
        dims = [in_dim] + sizes
        self.layers = nn.ModuleList([nn.Linear(a, b, bias=False) for a, b in zip(dims, dims[1:])])
        self.p = p

    def forward(self, x):
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), p=self.p, training=True)
        return x


class Attention(nn.Module):
    def __init__(self, query_dim, memory_dim, dim):
        super().__init__()
        self.query = nn.Linear(query_dim, dim, bias=False)
        self.memory = nn.Linear(memory_dim, dim, bias=False)
        self.location = nn.Conv1d(1, dim, 3, padding=1)
        self.v = nn.Linear(dim, 1, bias=False)

    def forward(self, query, memory, processed, cumulative, mask):
        loc = self.location(cumulative.unsqueeze(1)).transpose(1, 2)
        energy = self.v(torch.tanh(self.query(query).unsqueeze(1) + processed + loc)).squeeze(-1)
        weights = energy.masked_fill(mask, -1e4).softmax(dim=-1)
        return (weights.unsqueeze(1) @ memory).squeeze(1), weights


class Decoder(nn.Module):
    def __init__(self, n_mels, memory_dim, hidden=48):
        super().__init__()
        self.n_mels = n_mels
        self.hidden = hidden
        self.prenet = Prenet(n_mels, [32, 32])
        self.attention = Attention(hidden, memory_dim, 24)
        self.cell = nn.LSTMCell(32 + memory_dim, hidden)
        self.proj = nn.Linear(hidden + memory_dim, n_mels)
        self.gate = nn.Linear(hidden + memory_dim, 1)

    def start(self, memory):
        b, t, d = memory.shape
        return {
            "h": memory.new_zeros(b, self.hidden),
            "c": memory.new_zeros(b, self.hidden),
            "context": memory.new_zeros(b, d),
            "cumulative": memory.new_zeros(b, t),
        }

    def decode_step(self, frame, memory, processed, mask, s):
        h, c = self.cell(torch.cat([frame, s["context"]], dim=-1), (s["h"], s["c"]))
        context, weights = self.attention(h, memory, processed, s["cumulative"], mask)
        s = {"h": h, "c": c, "context": context, "cumulative": s["cumulative"] + weights}
        out = torch.cat([h, context], dim=-1)
        return self.proj(out), self.gate(out), s

    def forward(self, memory, mels, mask):
        go = mels.new_zeros(mels.shape[0], 1, self.n_mels)
        frames = self.prenet(torch.cat([go, mels[:, :-1]], dim=1))
        processed = self.attention.memory(memory)
        state, outs, gates = self.start(memory), [], []
        for i in range(mels.shape[1]):
            mel, gate, state = self.decode_step(frames[:, i], memory, processed, mask, state)
            outs.append(mel)
            gates.append(gate)
        return torch.stack(outs, dim=1), torch.cat(gates, dim=1)

    @torch.no_grad()
    def inference(self, memory, mask, steps):
        frame = memory.new_zeros(memory.shape[0], self.n_mels)
        processed = self.attention.memory(memory)
        state, outs = self.start(memory), []
        for _ in range(steps):
            frame, gate, state = self.decode_step(self.prenet(frame), memory, processed, mask, state)
            outs.append(frame)
        return torch.stack(outs, dim=1)


class Tacotron(nn.Module):
    def __init__(self, symbols=12, n_mels=8, dim=24):
        super().__init__()
        self.embedding = nn.Embedding(symbols, dim, padding_idx=0)
        self.encoder = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.1)
        self.decoder = Decoder(n_mels, dim)

    def encode(self, text):
        return self.dropout(self.encoder(self.embedding(text))[0]), text == 0

    def forward(self, text, mels):
        memory, mask = self.encode(text)
        return self.decoder(memory, mels, mask)

    def infer(self, text, steps):
        memory, mask = self.encode(text)
        return self.decoder.inference(memory, mask, steps)


def speech(n, generator, table):
    text = torch.randint(1, 12, (n, 5), generator=generator)
    mels = table[text].repeat_interleave(2, dim=1)
    gate = torch.zeros(n, mels.shape[1])
    gate[:, -1] = 1.0
    return text, mels + 0.05 * torch.randn(mels.shape, generator=generator), gate


def main():
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(6)
    table = torch.randn(12, 8, generator=gen)
    model = Tacotron()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, weight_decay=1e-6)
    held = speech(16, gen, table)
    for step in range(1, 61):
        model.train()
        text, mels, gate = speech(16, gen, table)
        out, stop = model(text, mels)
        loss = F.mse_loss(out, mels) + 0.2 * F.binary_cross_entropy_with_logits(stop, gate)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            model.eval()
            with torch.no_grad():
                teacher_forced = F.mse_loss(model(held[0], held[1])[0], held[1])
            free = F.mse_loss(model.infer(held[0], held[1].shape[1]), held[1])
            print(step, round(loss.item(), 4), round(teacher_forced.item(), 4), round(free.item(), 4))


if __name__ == "__main__":
    main()
