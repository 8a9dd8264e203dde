import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim


class PairwiseDistance(nn.Module):
    def __init__(self, p=2, eps=1e-4):
        super().__init__()
        self.norm = p
        self.eps = eps

    def forward(self, x1, x2):
        diff = torch.abs(x1 - x2)
        out = torch.pow(diff, self.norm).sum(dim=1)
        return torch.pow(out + self.eps, 1.0 / self.norm)


class TripletMarginLoss(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin
        self.pdist = PairwiseDistance(2)

    def forward(self, anchor, positive, negative):
        d_p = self.pdist(anchor, positive)
        d_n = self.pdist(anchor, negative)
        return torch.clamp(self.margin + d_p - d_n, min=0.0).mean()


class FaceModel(nn.Module):
    def __init__(self, embedding_size, num_classes, in_features=24, alpha=5.0):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(in_features, 64), nn.ReLU(), nn.Linear(64, embedding_size)
        )
        self.classifier = nn.Linear(embedding_size, num_classes)
        self.alpha = alpha

    def l2_norm(self, x):
        return x / (x.pow(2).sum(1, keepdim=True) + 1e-10).sqrt()

    def forward(self, x):
        return self.alpha * self.l2_norm(self.trunk(x))

    def forward_classifier(self, x):
        return self.classifier(self.forward(x))


class FaceDataset:
    def __init__(self, identities, features, seed):
        self.rng = np.random.default_rng(seed)
        self.centers = self.rng.normal(0, 1, (identities, features))
        self.nuisance = self.rng.normal(0, 1, (4, features))
        self.identities = identities

    def draw(self, label):
        style = self.rng.normal(0, 1.2, (len(label), 4)) @ self.nuisance
        noise = self.rng.normal(0, 0.5, (len(label), self.centers.shape[1]))
        return torch.tensor(self.centers[label] + style + noise, dtype=torch.float32)

    def triplets(self, n):
        c1 = self.rng.integers(0, self.identities, n)
        c2 = (c1 + self.rng.integers(1, self.identities, n)) % self.identities
        data = (self.draw(c1), self.draw(c1), self.draw(c2))
        return data, torch.from_numpy(c1), torch.from_numpy(c2)


def train(dataset, model, optimizer, args, epoch):
    model.train()
    l2_dist = PairwiseDistance(2)
    log = []
    for batch_idx in range(args.batches):
        (data_a, data_p, data_n), label_p, label_n = dataset.triplets(args.batch_size)
        out_a, out_p, out_n = model(data_a), model(data_p), model(data_n)

        d_p = l2_dist(out_a, out_p)
        d_n = l2_dist(out_a, out_n)
        all_hard = (d_n - d_p < args.margin).cpu().data.numpy().flatten()
        hard_triplets = np.where(all_hard == 1)
        if len(hard_triplets[0]) == 0:
            continue
        out_selected_a = torch.from_numpy(out_a.cpu().data.numpy()[hard_triplets])
        out_selected_p = torch.from_numpy(out_p.cpu().data.numpy()[hard_triplets])
        out_selected_n = torch.from_numpy(out_n.cpu().data.numpy()[hard_triplets])
        triplet_loss = TripletMarginLoss(args.margin)(
            out_selected_a, out_selected_p, out_selected_n
        )

        selected_data = torch.cat([data_a[hard_triplets], data_n[hard_triplets]])
        cls = model.forward_classifier(selected_data)
        true_labels = torch.cat([label_p[hard_triplets], label_n[hard_triplets]])
        cross_entropy_loss = F.cross_entropy(cls, true_labels)

        loss = args.lambda_ce * cross_entropy_loss + triplet_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append((loss.item(), triplet_loss.item(), len(hard_triplets[0])))
    means = np.mean(log, axis=0)
    print(
        f"Train Epoch: {epoch} Loss: {means[0]:.4f} Triplet: {means[1]:.4f} "
        f"# of Selected Triplets: {means[2]:.1f}"
    )


@torch.no_grad()
def test(dataset, model):
    model.eval()
    (a, p, n), _, _ = dataset.triplets(400)
    l2_dist = PairwiseDistance(2)
    d_p, d_n = l2_dist(model(a), model(p)), l2_dist(model(a), model(n))
    return (d_p < d_n).float().mean().item(), (d_n - d_p).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--embedding-size", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--margin", type=float, default=2.0)
    parser.add_argument("--lambda-ce", type=float, default=0.05)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    torch.manual_seed(0)
    dataset = FaceDataset(identities=20, features=24, seed=0)
    model = FaceModel(args.embedding_size, num_classes=20)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        train(dataset, model, optimizer, args, epoch)
        accuracy, gap = test(dataset, model)
        print(f"Test Epoch: {epoch} Accuracy: {accuracy:.3f} Gap: {gap:.3f}")


if __name__ == "__main__":
    main()
