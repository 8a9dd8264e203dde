import torch
import torch.nn.functional as F
from torch import nn


class FeatureTap:
    def __init__(self, model, names):
        self.store = {}
        modules = dict(model.named_modules())
        self.handles = [modules[n].register_forward_hook(self.keep(n)) for n in names]

    def keep(self, name):
        def hook(module, args, output):
            self.store[name] = output

        return hook

    def pop(self):
        store, self.store = self.store, {}
        return store

    def close(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []


class ConvNet(nn.Module):
    def __init__(self, widths, classes):
        super().__init__()
        stages, cin = [], 1
        for w in widths:
            stages.append(
                nn.Sequential(nn.Conv2d(cin, w, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(w), nn.ReLU())
            )
            cin = w
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(cin, classes)

    def forward(self, x):
        return self.head(self.stages(x).mean(dim=(2, 3)))


class Distiller(nn.Module):
    def __init__(self, teacher, student, pairs, widths, alpha):
        super().__init__()
        self.teacher = teacher
        self.student = student
        self.pairs = pairs
        self.alpha = alpha
        self.teacher.requires_grad_(False)
        self.connectors = nn.ModuleList([nn.Conv2d(s, t, 1, bias=False) for s, t in widths])
        self.teacher_tap = FeatureTap(teacher, [t for _, t in pairs])
        self.student_tap = FeatureTap(student, [s for s, _ in pairs])

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def trainable(self):
        return [*self.student.parameters(), *self.connectors.parameters()]

    def forward(self, images, labels):
        with torch.no_grad():
            soft = self.teacher(images)
        logits = self.student(images)
        known, learned = self.teacher_tap.pop(), self.student_tap.pop()
        loss = F.cross_entropy(logits, labels)
        loss = loss + F.kl_div(logits.log_softmax(1), soft.softmax(1), reduction="batchmean")
        for (s, t), connector in zip(self.pairs, self.connectors):
            loss = loss + self.alpha * F.mse_loss(connector(learned[s]), known[t])
        return loss

    def close(self):
        self.teacher_tap.close()
        self.student_tap.close()
        return self.student


def crosses(n, generator):
    y = torch.randint(0, 4, (n,), generator=generator)
    x = 0.4 * torch.randn(n, 1, 16, 16, generator=generator)
    for i, k in enumerate(y.tolist()):
        if k in (0, 2):
            x[i, 0, 3 + 4 * (k // 2), :] += 1.5
        if k in (1, 2, 3):
            x[i, 0, :, 4 + 3 * k] += 1.5
    return x, y


def pretrain(teacher, images, labels, epochs):
    optimizer = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    teacher.train()
    for _ in range(epochs):
        for idx in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(teacher(images[idx]), labels[idx]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model, images, labels):
    was_training = model.training
    model.eval()
    hits = (model(images).argmax(1) == labels).float().mean().item()
    model.train(was_training)
    return hits


def main():
    torch.manual_seed(40)
    gen = torch.Generator().manual_seed(40)
    images, labels = crosses(256, gen)
    held = crosses(128, gen)
    teacher, student = ConvNet([16, 32, 32], 4), ConvNet([6, 10, 10], 4)
    pretrain(teacher, images, labels, 3)
    print("teacher", round(accuracy(teacher, *held), 3))
    pairs = [("stages.1", "stages.1"), ("stages.2", "stages.2")]
    distiller = Distiller(teacher, student, pairs, [(10, 32), (10, 32)], alpha=0.5)
    optimizer = torch.optim.SGD(distiller.trainable(), lr=0.05, momentum=0.9)
    for epoch in range(5):
        distiller.train()
        total = 0.0
        for idx in torch.randperm(len(images)).split(32):
            loss = distiller(images[idx], labels[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(idx)
        score = accuracy(distiller.student, *held)
        distiller.student_tap.pop()
        print(epoch, round(total / len(images), 4), round(score, 3))
    deployed = distiller.close()
    print("deployed", round(accuracy(deployed, *held), 3))


if __name__ == "__main__":
    main()
