import argparse

import torch
import torch.nn as nn


def get_parser():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=12)
    p.add_argument("--rnn-size", type=int, default=32)
    p.add_argument("--trunc-size", type=int, default=10)
    p.add_argument("--seq-len", type=int, default=40)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--train-steps", type=int, default=60)
    p.add_argument("--lr", type=float, default=5e-3)
    return p


class Corpus:
    """Cyclic sequences: the next token is the current one plus a stride that each row keeps."""

    def __init__(self, opt):
        self.opt = opt

    def batches(self, n):
        o = self.opt
        for _ in range(n):
            start = torch.randint(o.vocab, (o.batch_size, 1))
            stride = torch.randint(1, 4, (o.batch_size, 1))
            yield (start + stride * torch.arange(o.seq_len + 1)) % o.vocab


class DecoderRNN(nn.Module):
    def __init__(self, vocab, size):
        super().__init__()
        self.embeddings = nn.Embedding(vocab, size)
        self.rnn = nn.LSTM(size, size, batch_first=True)
        self.generator = nn.Linear(size, vocab)

    def forward(self, tokens, state=None):
        out, state = self.rnn(self.embeddings(tokens), state)
        return self.generator(out), state


class Statistics:
    def __init__(self):
        self.loss, self.words = 0.0, 0

    def update(self, loss, words):
        self.loss += loss * words
        self.words += words

    def xent(self):
        return self.loss / max(self.words, 1)


class Trainer:
    def __init__(self, model, optim, trunc_size, max_norm=5.0):
        self.model, self.optim = model, optim
        self.trunc_size, self.max_norm = trunc_size, max_norm
        self.criterion = nn.CrossEntropyLoss()

    def train(self, batches):
        self.model.train()
        stats = Statistics()
        for batch in batches:
            source, target = batch[:, :-1], batch[:, 1:]
            state = None
            for j in range(0, source.size(1), self.trunc_size):
                self.model.zero_grad()
                scores, state = self.model(source[:, j : j + self.trunc_size], state)
                state = tuple(s.detach() for s in state)
                gold = target[:, j : j + self.trunc_size]
                loss = self.criterion(scores.flatten(0, 1), gold.flatten())
                loss.backward()
                stats.update(loss.item(), gold.numel())
                nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
                self.optim.step()
        return stats.xent()


def main(argv=()):
    opt = get_parser().parse_args(list(argv))
    torch.manual_seed(23)
    model = DecoderRNN(opt.vocab, opt.rnn_size)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=opt.lr), opt.trunc_size)
    corpus = Corpus(opt)
    xents = [trainer.train(corpus.batches(opt.train_steps // 3)) for _ in range(3)]
    print("xent by third:", [round(x, 4) for x in xents])
    return {"trainer": trainer, "xents": xents, "opt": opt}

if __name__ == "__main__":
    main()
