import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def read_vectors(vocab, dim, seed):
    rng = np.random.RandomState(seed)
    centres = rng.randn(6, dim)
    vectors = {}
    for i, word in enumerate(vocab):
        vectors[word] = centres[i % 6] + 0.15 * rng.randn(dim)
    return vectors


class EmbedLayer(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, dropout, padding_idx=0, freeze=False, pretrained=None, mapping=None):
        super().__init__()
        self.freeze = freeze
        self.embedding = nn.Embedding(num_embeddings, embedding_dim, padding_idx=padding_idx)
        self.drop = nn.Dropout(dropout)
        self.padding_idx = padding_idx
        nn.init.xavier_normal_(self.embedding.weight)
        with torch.no_grad():
            self.embedding.weight[padding_idx].zero_()
        if pretrained is not None:
            self.load_pretrained(pretrained, mapping)

    def load_pretrained(self, pretrained, mapping):
        weights = self.embedding.weight.detach().clone()
        for word, index in mapping.items():
            if word in pretrained:
                weights[index] = torch.tensor(pretrained[word], dtype=weights.dtype)
        self.embedding = nn.Embedding.from_pretrained(weights, freeze=self.freeze, padding_idx=self.padding_idx)

    def forward(self, xs):
        return self.drop(self.embedding(xs))


class EncoderLSTM(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.rnn = nn.LSTM(input_size, hidden, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.rnn(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]


class RelationModel(nn.Module):
    def __init__(self, params, sizes, pretrained, mapping):
        super().__init__()
        self.word_embed = EmbedLayer(
            sizes["words"], params.word_dim, params.drop_i, freeze=params.freeze_words, pretrained=pretrained, mapping=mapping
        )
        self.type_embed = EmbedLayer(sizes["types"], params.type_dim, 0.0)
        self.encoder = EncoderLSTM(params.word_dim, params.lstm_dim)
        self.classifier = nn.Sequential(
            nn.Linear(4 * params.lstm_dim + 2 * params.type_dim, params.out_dim),
            nn.Tanh(),
            nn.Linear(params.out_dim, sizes["rels"]),
        )

    def forward(self, batch):
        ctx = self.encoder(self.word_embed(batch["words"]), batch["lengths"])
        rows = torch.arange(len(ctx))
        head, tail = ctx[rows, batch["head"]], ctx[rows, batch["tail"]]
        types = self.type_embed(batch["types"]).flatten(1)
        return self.classifier(torch.cat([head, tail, types], dim=1))


class DocDataset:
    def __init__(self, mapping, size, seed, length=12):
        rng = np.random.RandomState(seed)
        n = len(mapping)
        self.words = torch.from_numpy(rng.randint(1, n + 1, size=(size, length)))
        self.lengths = torch.full((size,), length)
        self.head = torch.from_numpy(rng.randint(0, 4, size=size))
        self.tail = torch.from_numpy(rng.randint(6, length, size=size))
        rows = torch.arange(size)
        a = (self.words[rows, self.head] - 1) % 6
        b = (self.words[rows, self.tail] - 1) % 6
        self.labels = (a // 3) * 2 + (b // 3)
        self.types = torch.from_numpy(rng.randint(1, 3, size=(size, 2)))

    def batches(self, size):
        for idx in torch.randperm(len(self.labels)).split(size):
            yield {
                "words": self.words[idx],
                "lengths": self.lengths[idx],
                "head": self.head[idx],
                "tail": self.tail[idx],
                "types": self.types[idx],
                "labels": self.labels[idx],
            }


class Trainer:
    def __init__(self, params, sizes, pretrained, mapping):
        self.params = params
        self.model = RelationModel(params, sizes, pretrained, mapping)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(trainable, lr=params.lr, weight_decay=params.reg)

    def run_epoch(self, data, train):
        self.model.train(train)
        total, hits, seen = 0.0, 0, 0
        with torch.set_grad_enabled(train):
            for batch in data.batches(self.params.batch):
                logits = self.model(batch)
                loss = F.cross_entropy(logits, batch["labels"])
                if train:
                    self.optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(self.model.parameters(), self.params.gc)
                    self.optimizer.step()
                total += loss.item() * len(logits)
                hits += (logits.argmax(1) == batch["labels"]).sum().item()
                seen += len(logits)
        return total / seen, hits / seen


def get_params():
    parser = argparse.ArgumentParser()
    for name, default in [("word_dim", 16), ("type_dim", 4), ("lstm_dim", 12), ("out_dim", 24), ("batch", 32), ("epochs", 6)]:
        parser.add_argument("--" + name, type=int, default=default)
    for name, default in [("lr", 5e-3), ("reg", 1e-5), ("gc", 5.0), ("drop_i", 0.2)]:
        parser.add_argument("--" + name, type=float, default=default)
    parser.add_argument("--freeze_words", action="store_true")
    return parser.parse_args([])


def main():
    torch.manual_seed(42)
    params = get_params()
    vocab = ["w%03d" % i for i in range(240)]
    mapping = {w: i + 1 for i, w in enumerate(vocab)}
    pretrained = read_vectors(vocab, params.word_dim, 5)
    sizes = {"words": len(vocab) + 1, "types": 3, "rels": 4}
    train, dev = DocDataset(mapping, 384, 0), DocDataset(mapping, 128, 1)
    trainer = Trainer(params, sizes, pretrained, mapping)
    for epoch in range(params.epochs):
        loss, acc = trainer.run_epoch(train, True)
        dev_loss, dev_acc = trainer.run_epoch(dev, False)
        print(epoch, round(loss, 3), round(acc, 3), round(dev_loss, 3), round(dev_acc, 3))


if __name__ == "__main__":
    main()
