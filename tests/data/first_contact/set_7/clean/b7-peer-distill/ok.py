import torch
import torch.nn as nn
import torch.nn.functional as F


class FeatureTap:
    def __init__(self, module):
        self.value = None
        self.handle = module.register_forward_hook(self._hook)

    def _hook(self, module, inputs, output):
        self.value = output

    def pop(self):
        value, self.value = self.value, None
        return value

    def close(self):
        self.handle.remove()


class SmallNet(nn.Module):
    def __init__(self, dims, num_classes):
        super().__init__()
        blocks = []
        for a, b in zip(dims[:-1], dims[1:]):
            blocks += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.1)]
        self.body = nn.Sequential(*blocks)
        self.fc = nn.Linear(dims[-1], num_classes)

    def forward(self, x):
        return self.fc(self.body(x))


class TeacherStudents(nn.Module):
    """A fixed teacher and two students who learn from it and from one another."""

    def __init__(self, teacher, students):
        super().__init__()
        self.teacher = teacher.requires_grad_(False)
        self.students = nn.ModuleList(students)
        self.regressors = nn.ModuleList(
            nn.Linear(s.fc.in_features, teacher.fc.in_features, bias=False) for s in students
        )
        self.teacher.eval()

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def trainable(self, k):
        return [*self.students[k].parameters(), *self.regressors[k].parameters()]


def kd_loss(logits, target_logits, T):
    return F.kl_div(
        F.log_softmax(logits / T, 1), F.softmax(target_logits / T, 1), reduction="batchmean"
    ) * (T * T)


def pretrain(net, x, y, steps=80):
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    net.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def mutual_step(system, taps, teacher_tap, optimizers, x, y, T=3.0):
    system.train()
    t_logits = system.teacher(x)
    t_feat = teacher_tap.pop()
    logits = [s(x) for s in system.students]
    feats = [tap.pop() for tap in taps]
    losses = []
    for k in range(len(logits)):
        peers = [logits[j].detach() for j in range(len(logits)) if j != k]
        loss = F.cross_entropy(logits[k], y) + 0.5 * kd_loss(logits[k], t_logits, T)
        loss = loss + sum(kd_loss(logits[k], p, T) for p in peers) / len(peers)
        loss = loss + 0.1 * F.mse_loss(system.regressors[k](feats[k]), t_feat)
        losses.append(loss)
    for optimizer, loss in zip(optimizers, losses):
        optimizer.zero_grad()
        loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return [l.detach() for l in losses]


@torch.no_grad()
def accuracy(net, x, y):
    was_training = net.training
    net.eval()
    acc = (net(x).argmax(1) == y).float().mean().item()
    net.train(was_training)
    return acc


def blobs(n, generator, num_classes=6, dim=20):
    centers = torch.randn(num_classes, dim, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, num_classes, (n,), generator=generator)
    x = centers[y] * (1 + 0.3 * torch.randn(n, 1, generator=generator)) + torch.randn(n, dim, generator=generator)
    return x, y


def main():
    torch.manual_seed(10)
    gen = torch.Generator().manual_seed(11)
    x, y = blobs(512, gen)
    x_test, y_test = blobs(512, gen)
    teacher = pretrain(SmallNet((20, 96, 64), 6), x, y)
    system = TeacherStudents(teacher, [SmallNet((20, 24), 6), SmallNet((20, 16, 16), 6)])
    optimizers = [torch.optim.Adam(system.trainable(k), lr=5e-3) for k in range(2)]
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 10) for o in optimizers]
    teacher_tap = FeatureTap(system.teacher.body)
    taps = [FeatureTap(s.body) for s in system.students]
    history = []
    for epoch in range(10):
        for idx in torch.randperm(len(x), generator=gen).split(64):
            history.append(mutual_step(system, taps, teacher_tap, optimizers, x[idx], y[idx]))
        for scheduler in schedulers:
            scheduler.step()
        if epoch % 3 == 0:
            mean = torch.tensor(history[-8:]).mean(0).tolist()
            accs = [accuracy(s, x_test, y_test) for s in system.students]
            print(f"epoch {epoch} losses {mean[0]:.3f} {mean[1]:.3f} acc {accs[0]:.3f} {accs[1]:.3f}")
    for tap in [*taps, teacher_tap]:
        tap.close()
    print(f"teacher acc {accuracy(system.teacher, x_test, y_test):.3f}")


if __name__ == "__main__":
    main()
