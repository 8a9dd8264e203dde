"""Text classification with a perturbed embedding table: clean and adversarial gradients are added up."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class FGM:
    def __init__(self, model, name="embedding.weight", epsilon=0.5):
        self.model, self.name, self.epsilon = model, name, epsilon
        self.backup = {}

    def attack(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad and name == self.name and param.grad is not None:
                self.backup[name] = param.data.clone()
                norm = torch.norm(param.grad)
                if norm > 0 and not torch.isnan(norm):
                    param.data.add_(self.epsilon * param.grad / norm)

    def restore(self):
        for name, param in self.model.named_parameters():
            if name in self.backup:
                param.data.copy_(self.backup[name])
        self.backup = {}


class TextCNN(nn.Module):
    def __init__(self, vocab=120, dim=16, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(dim, 12, k, padding=k // 2) for k in (3, 5)])
        self.fc = nn.Linear(24, classes)

    def forward(self, ids):
        h = self.embedding(ids).transpose(1, 2)
        pooled = [F.relu(conv(h)).amax(-1) for conv in self.convs]
        return self.fc(torch.cat(pooled, 1))


def corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(3, (n,), generator=g)
    ids = torch.randint(40, 120, (n, 18), generator=g)
    for i in range(n):
        where = torch.randperm(18, generator=g)[:4]
        ids[i, where] = 1 + label[i] * 12 + torch.randint(12, (4,), generator=g)
    return ids, label


def train_step(model, fgm, optimizer, ids, label):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(ids), label)
    loss.backward()
    fgm.attack()
    loss_adv = F.cross_entropy(model(ids), label)
    loss_adv.backward()
    fgm.restore()
    optimizer.step()
    return loss.item(), loss_adv.item()


def accuracy(model, ids, label):
    model.eval()
    with torch.no_grad():
        result = (model(ids).argmax(1) == label).float().mean().item()
    model.train()
    return result


def main():
    torch.manual_seed(0)
    ids, label = corpus(300, 0)
    val_ids, val_label = corpus(150, 1)
    model = TextCNN()
    fgm = FGM(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(5):
        rows = [train_step(model, fgm, optimizer, ids[i], label[i]) for i in torch.randperm(300).split(30)]
        clean, adv = (sum(c) / len(rows) for c in zip(*rows))
        print(f"epoch {epoch}: loss {clean:.3f} adversarial {adv:.3f} val {accuracy(model, val_ids, val_label):.3f}")
    return model


if __name__ == "__main__":
    main()
