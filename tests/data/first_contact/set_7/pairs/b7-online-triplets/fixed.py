from itertools import combinations

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class ShapeletDataset(torch.utils.data.Dataset):
    """Short spectra of a few materials."""

    def __init__(self, n_classes, per_class, length, train=True):
        rng = np.random.default_rng(1 if train else 2)
        base = np.random.default_rng(0).standard_normal((n_classes, length))
        data, labels = [], []
        for c in range(n_classes):
            x = base[c] + 0.8 * rng.standard_normal((per_class, length))
            repeated = rng.random(per_class) < 0.02
            x[repeated] = x[0]
            data.append(x)
            labels += [c] * per_class
        self.data = torch.tensor(np.concatenate(data), dtype=torch.float32).unsqueeze(1)
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.data[i], self.labels[i]


class BalancedBatchSampler(torch.utils.data.BatchSampler):
    def __init__(self, labels, n_classes, n_samples, n_batches, seed):
        self.labels = labels.numpy()
        self.n_classes, self.n_samples, self.n_batches = n_classes, n_samples, n_batches
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        for _ in range(self.n_batches):
            classes = self.rng.choice(np.unique(self.labels), self.n_classes, replace=False)
            yield [
                int(i)
                for c in classes
                for i in self.rng.choice(np.flatnonzero(self.labels == c), self.n_samples, replace=False)
            ]

    def __len__(self):
        return self.n_batches


class EmbeddingNet(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.convnet = nn.Sequential(
            nn.Conv1d(1, 16, 5), nn.PReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 16, 5), nn.PReLU(), nn.MaxPool1d(2)
        )
        self.fc = nn.LazyLinear(dim)

    def forward(self, x):
        return self.fc(self.convnet(x).flatten(1))


def pdist(vectors):
    return (vectors.unsqueeze(1) - vectors.unsqueeze(0)).pow(2).sum(2)


class FunctionNegativeTripletSelector:
    def __init__(self, margin, select):
        self.margin, self.select = margin, select

    def get_triplets(self, embeddings, labels):
        distances = pdist(embeddings.detach()).numpy()
        labels = labels.numpy()
        triplets = []
        for label in set(labels.tolist()):
            own = np.flatnonzero(labels == label)
            other = np.flatnonzero(labels != label)
            for a, p in combinations(own, 2):
                values = distances[a, p] - distances[a, other] + self.margin
                hard = self.select(values)
                if hard is not None:
                    triplets.append((int(a), int(p), int(other[hard])))
        return torch.tensor(triplets, dtype=torch.long).reshape(-1, 3)


def hardest_negative(values):
    i = int(np.argmax(values))
    return i if values[i] > 0 else None


class OnlineTripletLoss(nn.Module):
    def __init__(self, margin, selector):
        super().__init__()
        self.margin, self.selector = margin, selector

    def forward(self, embeddings, labels):
        t = self.selector.get_triplets(embeddings, labels)
        if len(t) == 0:
            return embeddings.sum() * 0.0, 0
        ap = (embeddings[t[:, 0]] - embeddings[t[:, 1]]).pow(2).sum(1).add(1e-9).sqrt()
        an = (embeddings[t[:, 0]] - embeddings[t[:, 2]]).pow(2).sum(1).add(1e-9).sqrt()
        return F.relu(ap - an + self.margin).mean(), len(t)


def train_epoch(loader, model, loss_fn, optimizer):
    model.train()
    losses, used = [], 0
    for data, labels in loader:
        optimizer.zero_grad()
        loss, n = loss_fn(model(data), labels)
        losses.append(loss.item())
        used += n
        loss.backward()
        optimizer.step()
    return np.mean(losses), used / len(loader)


@torch.no_grad()
def recall_at_1(model, dataset):
    model.eval()
    emb = model(dataset.data)
    d = pdist(emb)
    d.fill_diagonal_(float("inf"))
    return (dataset.labels[d.argmin(1)] == dataset.labels).float().mean().item()


def main():
    torch.manual_seed(4)
    train_set, test_set = ShapeletDataset(8, 60, 32), ShapeletDataset(8, 30, 32, train=False)
    sampler = BalancedBatchSampler(train_set.labels, n_classes=6, n_samples=6, n_batches=15, seed=3)
    loader = torch.utils.data.DataLoader(train_set, batch_sampler=sampler)
    model = EmbeddingNet()
    model(train_set.data[:2])
    selector = FunctionNegativeTripletSelector(1.0, hardest_negative)
    loss_fn = OnlineTripletLoss(1.0, selector)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        loss, n = train_epoch(loader, model, loss_fn, optimizer)
        print(f"epoch {epoch}: loss {loss:.4f} triplets {n:.1f} recall@1 {recall_at_1(model, test_set):.3f}")


if __name__ == "__main__":
    main()
