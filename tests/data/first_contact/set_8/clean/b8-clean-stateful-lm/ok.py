"""Stateful language model: truncated back-propagation, tied weights, accumulation with a short last window."""
import io

import torch
import torch.nn.functional as F
from torch import nn


class TiedLM(nn.Module):
    def __init__(self, vocab=32, hidden=32, layers=2, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.rnn = nn.LSTM(hidden, hidden, layers, dropout=dropout, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(hidden, vocab)
        self.decoder.weight = self.embed.weight
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def initial_state(self, batch):
        shape = (self.rnn.num_layers, batch, self.rnn.hidden_size)
        return torch.zeros(shape), torch.zeros(shape)

    def forward(self, ids, state):
        out, state = self.rnn(self.drop(self.embed(ids)), state)
        return self.decoder(self.drop(out)), state


class NoamSchedule:
    def __init__(self, optimizer, hidden, warmup, factor=1.0):
        self.optimizer = optimizer
        self.hidden, self.warmup, self.factor = hidden, warmup, factor
        self.count = 0
        self.step()

    def step(self):
        self.count += 1
        lr = self.factor * self.hidden**-0.5 * min(self.count**-0.5, self.count * self.warmup**-1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"] - 1
        self.step()


def make_stream(batch=8, length=641, vocab=32, seed=0):
    g = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, vocab, (batch,), generator=g)]
    for _ in range(length - 1):
        jump = torch.randint(1, 3, (batch,), generator=g)
        ids.append((ids[-1] * 5 + jump) % vocab)
    return torch.stack(ids, 1)


class Session:
    def __init__(self, accumulate=3, bptt=16):
        self.accumulate, self.bptt = accumulate, bptt
        self.model = TiedLM()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, betas=(0.9, 0.98))
        self.schedule = NoamSchedule(self.optimizer, 32, warmup=20, factor=0.4)

    def train_epoch(self, stream):
        self.model.train()
        state = self.model.initial_state(stream.shape[0])
        starts = list(range(0, stream.shape[1] - 1, self.bptt))
        total = 0.0
        for begin in range(0, len(starts), self.accumulate):
            window = starts[begin : begin + self.accumulate]
            self.optimizer.zero_grad()
            for start in window:
                end = min(start + self.bptt, stream.shape[1] - 1)
                logits, state = self.model(stream[:, start:end], state)
                state = tuple(s.detach() for s in state)
                loss = F.cross_entropy(logits.flatten(0, 1), stream[:, start + 1 : end + 1].flatten())
                (loss / len(window)).backward()
                total += loss.item() / len(starts)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
        return total

    @torch.no_grad()
    def evaluate(self, stream):
        was_training = self.model.training
        self.model.eval()
        logits, _ = self.model(stream[:, :-1], self.model.initial_state(stream.shape[0]))
        self.model.train(was_training)
        return F.cross_entropy(logits.flatten(0, 1), stream[:, 1:].flatten()).item()

    def save(self):
        file = io.BytesIO()
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule")}
        torch.save(parts, file)
        file.seek(0)
        return file

    def load(self, file):
        for name, state in torch.load(file).items():
            getattr(self, name).load_state_dict(state)


def main(epochs=7):
    torch.manual_seed(0)
    train, valid = make_stream(), make_stream(seed=1)
    session = Session()
    for epoch in range(epochs):
        if epoch == 3:
            file = session.save()
            session = Session()
            session.load(file)
        loss = session.train_epoch(train)
        lr = session.optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch} loss {loss:.4f} valid {session.evaluate(valid):.4f} lr {lr:.5f}")
    return session


if __name__ == "__main__":
    main()
