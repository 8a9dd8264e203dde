import torch
import torch.nn.functional as F
from torch import nn


def mlp_mixer(width, depth):
    return nn.ModuleList(
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)
    )


class Classifier(nn.Module):
    def __init__(self, width, depth, n_classes=6, d_in=48):
        super().__init__()
        self.stem = nn.Linear(d_in, width)
        self.blocks = mlp_mixer(width, depth)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, n_classes)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.dropout(h))


class FeatureTap:
    def __init__(self, module):
        self.value = None
        self.handle = module.register_forward_hook(self._store)

    def _store(self, module, inputs, output):
        self.value = output

    def pop(self):
        value, self.value = self.value, None
        return value

    def close(self):
        self.handle.remove()


class Callback:
    def on_fit_start(self, trainer):
        pass

    def loss_terms(self, trainer, x, logits):
        return {}

    def on_fit_end(self, trainer):
        pass


class Distiller(Callback):
    def __init__(self, teacher, temperature=3.0, weight=1.0, feature_weight=0.5):
        self.teacher = teacher.eval().requires_grad_(False)
        self.temperature, self.weight = temperature, weight
        self.feature_weight = feature_weight
        self.adapter = None

    def on_fit_start(self, trainer):
        self.student_tap = FeatureTap(trainer.model.blocks[-1])
        self.teacher_tap = FeatureTap(self.teacher.blocks[-1])
        with torch.no_grad():
            trainer.model(trainer.x[:2])
            self.teacher(trainer.x[:2])
        student_dim = self.student_tap.pop().shape[-1]
        teacher_dim = self.teacher_tap.pop().shape[-1]
        self.adapter = nn.Linear(student_dim, teacher_dim)
        trainer.optimizer.add_param_group({"params": self.adapter.parameters(), "lr": 1e-2})

    def loss_terms(self, trainer, x, logits):
        with torch.no_grad():
            reference = self.teacher(x)
        t = self.temperature
        kl = F.kl_div(
            F.log_softmax(logits / t, dim=1), F.softmax(reference / t, dim=1), reduction="batchmean"
        )
        features = F.mse_loss(self.adapter(self.student_tap.pop()), self.teacher_tap.pop())
        return {"kd": self.weight * t * t * kl, "feature": self.feature_weight * features}

    def on_fit_end(self, trainer):
        self.student_tap.close()
        self.teacher_tap.close()


class Trainer:
    def __init__(self, model, x, y, callbacks=(), lr=3e-3):
        self.model, self.x, self.y = model, x, y
        self.callbacks = list(callbacks)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def fit(self, epochs, batch_size=32):
        for callback in self.callbacks:
            callback.on_fit_start(self)
        self.model.train()
        history = []
        for _ in range(epochs):
            totals = {}
            for pick in torch.randperm(len(self.x)).split(batch_size):
                logits = self.model(self.x[pick])
                terms = {"ce": F.cross_entropy(logits, self.y[pick])}
                for callback in self.callbacks:
                    terms.update(callback.loss_terms(self, self.x[pick], logits))
                self.optimizer.zero_grad()
                sum(terms.values()).backward()
                self.optimizer.step()
                for name, term in terms.items():
                    totals[name] = totals.get(name, 0.0) + float(term.detach())
            history.append(totals)
        for callback in self.callbacks:
            callback.on_fit_end(self)
        return history

    @torch.no_grad()
    def accuracy(self, x, y):
        self.model.eval()
        return (self.model(x).argmax(1) == y).float().mean().item()


def make_data(n, generator):
    directions = torch.randn(6, 48, generator=torch.Generator().manual_seed(2))
    y = torch.randint(0, 6, (n,), generator=generator)
    x = 0.5 * directions[y] * (1 + torch.rand(n, 1, generator=generator))
    return x + 1.2 * torch.randn(n, 48, generator=generator), y


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(6)
    x, y = make_data(800, generator)
    x_test, y_test = make_data(400, generator)
    teacher = Trainer(Classifier(64, 3), x, y)
    teacher.fit(6)
    print(f"teacher accuracy {teacher.accuracy(x_test, y_test):.3f}")
    student = Trainer(Classifier(20, 1), x[:300], y[:300], [Distiller(teacher.model)])
    for epoch, totals in enumerate(student.fit(6)):
        print(f"epoch {epoch} " + " ".join(f"{k} {v:.3f}" for k, v in totals.items()))
    print(f"student accuracy {student.accuracy(x_test, y_test):.3f}")


if __name__ == "__main__":
    main()
