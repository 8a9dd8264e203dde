from collections import defaultdict
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SlimConvNet(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def make_benchmark(n_experiences=3, num_classes=3, per_class=32):
    patterns = 0.7 * torch.randn(num_classes, 1, 8, 8)
    labels = torch.arange(num_classes).repeat_interleave(per_class)
    experiences = []
    for e in range(n_experiences):
        brightness = 1.0 * labels.view(-1, 1, 1, 1) + 0.6 * e
        x = patterns[labels] + brightness + 0.8 * torch.randn(len(labels), 1, 8, 8)
        experiences.append(
            SimpleNamespace(current_experience=e, dataset=TensorDataset(x, labels))
        )
    return experiences


class StrategyPlugin:
    def before_backward(self, strategy):
        pass

    def after_training_exp(self, strategy):
        pass


class EWCPlugin(StrategyPlugin):
    def __init__(self, ewc_lambda):
        self.ewc_lambda = ewc_lambda
        self.saved_params = defaultdict(list)
        self.importances = defaultdict(list)

    def before_backward(self, strategy):
        exp_counter = strategy.experience.current_experience
        if exp_counter == 0:
            return
        penalty = torch.zeros(())
        for experience in range(exp_counter):
            for (_, cur), (_, saved), (_, imp) in zip(
                strategy.model.named_parameters(),
                self.saved_params[experience],
                self.importances[experience],
            ):
                penalty = penalty + (imp * (cur - saved).pow(2)).sum()
        strategy.loss = strategy.loss + self.ewc_lambda * penalty

    def after_training_exp(self, strategy):
        exp_counter = strategy.experience.current_experience
        self.importances[exp_counter] = self.compute_importances(
            strategy.model, strategy.criterion, strategy.optimizer, strategy.experience.dataset
        )
        self.saved_params[exp_counter] = [
            (name, p.detach().clone()) for name, p in strategy.model.named_parameters()
        ]

    def compute_importances(self, model, criterion, optimizer, dataset):
        importances = [(name, torch.zeros_like(p)) for name, p in model.named_parameters()]
        dataloader = DataLoader(dataset, batch_size=4)
        for x, y in dataloader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            for (_, p), (_, imp) in zip(model.named_parameters(), importances):
                if p.grad is not None:
                    imp += p.grad.detach().pow(2)
        for _, imp in importances:
            imp /= float(len(dataloader))
        optimizer.zero_grad()
        return importances


class Naive:
    def __init__(self, model, optimizer, criterion, plugins, train_mb_size=16, train_epochs=4):
        self.model = model
        self.optimizer = optimizer
        self.criterion = criterion
        self.plugins = plugins
        self.train_mb_size = train_mb_size
        self.train_epochs = train_epochs
        self.experience = None
        self.loss = None

    def train(self, experience):
        self.experience = experience
        self.model.train()
        loader = DataLoader(experience.dataset, batch_size=self.train_mb_size, shuffle=True)
        for _ in range(self.train_epochs):
            for x, y in loader:
                self.optimizer.zero_grad()
                self.loss = self.criterion(self.model(x), y)
                for plugin in self.plugins:
                    plugin.before_backward(self)
                self.loss.backward()
                self.optimizer.step()
        for plugin in self.plugins:
            plugin.after_training_exp(self)

    @torch.no_grad()
    def eval(self, stream):
        self.model.eval()
        results = []
        for experience in stream:
            x, y = experience.dataset.tensors
            logits = self.model(x)
            results.append(
                (F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item())
            )
        return results


def main():
    torch.manual_seed(1234)
    stream = make_benchmark()
    model = SlimConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    strategy = Naive(model, optimizer, nn.CrossEntropyLoss(), [EWCPlugin(ewc_lambda=5.0)])
    for experience in stream:
        strategy.train(experience)
        results = strategy.eval(stream[: experience.current_experience + 1])
        text = " ".join(f"{loss:.3f}/{acc:.2f}" for loss, acc in results)
        print(f"after experience {experience.current_experience}: {text}")


if __name__ == "__main__":
    main()
