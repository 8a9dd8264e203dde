"""Correct loops of everyday supervised training, as users write them."""

from __future__ import annotations

import copy
import itertools
import math

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.auditing.loops.bank import clean


class Classifier(nn.Module):
    def __init__(self, classes=3, drop=0.2):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.dropout = nn.Dropout(drop)
        self.classifier = nn.Linear(4 * 3 * 3, classes)

    def forward(self, x):
        return self.classifier(self.dropout(self.features(x).flatten(1)))


def pictures(count=24):
    return TensorDataset(torch.randn(count, 1, 6, 6), torch.randint(0, 3, (count,)))


@clean
def epochs_with_validation():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = lr_scheduler.MultiStepLR(optimizer, [1, 2])
    train, valid = DataLoader(pictures(), 8, shuffle=True), DataLoader(pictures(8), 4)
    history = {"loss": [], "accuracy": []}
    for _ in range(3):
        model.train()
        running = 0.0
        for x, y in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            running += loss.item() * len(x)
        model.eval()
        with torch.no_grad():
            hits = sum((model(x).argmax(1) == y).sum().item() for x, y in valid)
        scheduler.step()
        history["loss"].append(running)
        history["accuracy"].append(hits / 8)


@clean
def best_weights_kept_and_restored():
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters())
    best, best_loss, patience = None, math.inf, 0
    for _ in range(5):
        model.train()
        for x, y in DataLoader(pictures(16), 8):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            x, y = torch.randn(4, 1, 6, 6), torch.randint(0, 3, (4,))
            held_out = F.cross_entropy(model(x), y).item()
        if held_out < best_loss:
            best, best_loss, patience = copy.deepcopy(model.state_dict()), held_out, 0
        else:
            patience += 1
            if patience == 2:
                break
    model.load_state_dict(best)


@clean
def stopped_saved_and_taken_up_again():
    def build():
        model = Classifier()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return model, optimizer, lr_scheduler.CosineAnnealingLR(optimizer, 6)

    def run(model, optimizer, scheduler):
        for x, y in DataLoader(pictures(), 8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()

    first = build()
    run(*first)
    saved = [copy.deepcopy(part.state_dict()) for part in first]
    second = build()
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    run(*second)


@clean
def accumulation_with_a_last_uneven_window():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(pictures(28), 4)
    for _ in range(2):
        for i, (x, y) in enumerate(loader, start=1):
            loss = F.cross_entropy(model(x), y) / 3
            loss.backward()
            if i % 3 == 0 or i == len(loader):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


@clean
def accumulation_of_the_next_epoch_goes_on():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    count = 0
    for _ in range(3):
        for _ in range(5):  # a window of 4 may end in the next epoch
            F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 1)).div(4).backward()
            count += 1
            if count % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


@clean
def bfloat16_autocast():
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in DataLoader(pictures(), 6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


@clean
def scaler_with_clipping_and_accumulation():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
    for i, (x, y) in enumerate(DataLoader(pictures(32), 4)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y) / 2
        scaler.scale(loss).backward()
        if i % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)


@clean
def scaler_switched_off_on_this_machine():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    for x, y in DataLoader(pictures(), 6):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean
def scaler_of_two_optimizers():
    body, head = nn.Linear(4, 8), nn.Linear(8, 1)
    optimizers = [torch.optim.Adam(body.parameters()), torch.optim.SGD(head.parameters(), lr=0.1)]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.mse_loss(head(torch.tanh(body(torch.randn(6, 4)))), torch.randn(6, 1))
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()


@clean
def bfloat16_weights_with_float32_masters():
    masters = nn.Linear(4, 1)
    model = copy.deepcopy(masters).bfloat16()
    optimizer = torch.optim.SGD(masters.parameters(), lr=0.05)
    for _ in range(6):
        x, y = torch.randn(6, 4).bfloat16(), torch.randn(6, 1).bfloat16()
        F.mse_loss(model(x), y).backward()
        for mine, theirs in zip(masters.parameters(), model.parameters(), strict=True):
            mine.grad = theirs.grad.float()
        optimizer.step()
        model.zero_grad()
        with torch.no_grad():
            for mine, theirs in zip(masters.parameters(), model.parameters(), strict=True):
                theirs.copy_(mine)


@clean
def lbfgs_with_strong_wolfe():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    x, y = torch.randn(20, 4).double(), torch.randn(20, 1).double()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    for _ in range(4):

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            F.mse_loss(model(x), y).item()


@clean
def exponential_moving_average():
    model = Classifier()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in DataLoader(pictures(), 6):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        ema.update_parameters(model)
    ema.eval()
    with torch.no_grad():
        ema(torch.randn(2, 1, 6, 6))


@clean
def moving_average_by_hand():
    model = nn.Linear(4, 1)
    shadow = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).pow(2).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for name, value in model.named_parameters():
                shadow[name].lerp_(value, 0.1)
    kept = {name: value.detach().clone() for name, value in model.named_parameters()}
    model.load_state_dict(shadow)
    with torch.no_grad():
        model(torch.randn(6, 4))
    model.load_state_dict(kept)


@clean
def stochastic_weight_averaging():
    model = Classifier(drop=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    averaged = AveragedModel(model)
    usual, late = lr_scheduler.StepLR(optimizer, 1, 0.9), SWALR(optimizer, 0.01)
    loader = DataLoader(pictures(16), 8)
    for epoch in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if epoch >= 2:
            averaged.update_parameters(model)
            late.step()
        else:
            usual.step()
    update_bn(loader, averaged)


@clean
def tied_embedding_and_output():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.body = nn.GRU(8, 8, batch_first=True)
            self.out = nn.Linear(8, 11, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens):
            return self.out(self.body(self.embed(tokens))[0])

    model = Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(6):
        tokens = torch.randint(0, 11, (4, 7))
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 11), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def sparse_embeddings_with_two_optimizers():
    table, head = nn.EmbeddingBag(20, 6, sparse=True), nn.Linear(6, 1)
    sparse, dense = torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(head.parameters())
    for _ in range(6):
        ids = torch.randint(0, 20, (5, 3))
        loss = F.binary_cross_entropy_with_logits(head(table(ids)), torch.rand(5, 1))
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()


@clean
def matrix_factorization_with_sgd_on_sparse_gradients():
    users, items = nn.Embedding(9, 4, sparse=True), nn.Embedding(7, 4, sparse=True)
    optimizer = torch.optim.SGD([*users.parameters(), *items.parameters()], lr=0.1)
    for _ in range(8):
        u, i, rating = torch.randint(9, (12,)), torch.randint(7, (12,)), torch.rand(12)
        optimizer.zero_grad()
        ((users(u) * items(i)).sum(1) - rating).square().mean().backward()
        optimizer.step()


@clean
def decay_for_some_parameters_only():
    model = Classifier()
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3
    )
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=8)
    for x, y in itertools.islice(itertools.cycle(DataLoader(pictures(), 6)), 8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()


@clean
def learning_rate_set_by_hand():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step, (x, y) in enumerate(DataLoader(pictures(32), 4)):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, step / 3)  # the first step moves nothing
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@clean
def plateau_scheduler():
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(3):
        model.train()
        for x, y in DataLoader(pictures(16), 8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            scheduler.step(F.cross_entropy(model(torch.randn(4, 1, 6, 6)), torch.zeros(4).long()))


@clean
def several_losses_with_weights():
    trunk = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    classify, regress = nn.Linear(8, 3), nn.Linear(8, 1)
    log_variances = nn.Parameter(torch.zeros(2))
    parts = [*trunk.parameters(), *classify.parameters(), *regress.parameters(), log_variances]
    optimizer = torch.optim.Adam(parts)
    for _ in range(6):
        hidden = trunk(torch.randn(6, 4))
        losses = torch.stack(
            [
                F.cross_entropy(classify(hidden), torch.randint(0, 3, (6,))),
                F.l1_loss(regress(hidden), torch.randn(6, 1)),
            ]
        )
        loss = (losses * torch.exp(-log_variances) + log_variances).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def two_backwards_for_two_losses():
    trunk, a, b = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*trunk.parameters(), *a.parameters(), *b.parameters()], lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        hidden = trunk(torch.randn(6, 4)).tanh()
        a(hidden).square().mean().backward(retain_graph=True)
        b(hidden).abs().mean().backward()
        optimizer.step()


@clean
def regularised_by_hand():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(pictures(), 6):
        penalty = sum(p.abs().sum() for p in model.parameters())
        loss = F.cross_entropy(model(x), y) + 1e-4 * penalty
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad.add_(p.detach(), alpha=1e-3)
        optimizer.step()
        with torch.no_grad():
            model.classifier.weight.clamp_(-1, 1)


@clean
def noise_added_to_gradients():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        assert norm >= 0
        for p in model.parameters():
            p.grad += 0.01 * torch.randn_like(p.grad)
        optimizer.step()


@clean
def mixup_and_augmentation():
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in DataLoader(pictures(), 8, shuffle=True):
        keep = torch.distributions.Beta(0.4, 0.4).sample().item()
        order = torch.randperm(len(x))
        mixed = keep * x + (1 - keep) * x[order]
        mixed[:, :, :2] = 0
        out = model(mixed)
        loss = keep * F.cross_entropy(out, y) + (1 - keep) * F.cross_entropy(out, y[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Ragged(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((index % 4 + 1, 3), float(index)), index % 2


@clean
def ragged_batches_by_a_collate_function():
    def collate(items):
        xs, ys = zip(*items, strict=True)
        return nn.utils.rnn.pack_sequence(xs, enforce_sorted=False), torch.tensor(ys)

    rnn, head = nn.LSTM(3, 5), nn.Linear(5, 2)
    optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()])
    for _ in range(2):
        for packed, y in DataLoader(Ragged(), 4, collate_fn=collate):
            optimizer.zero_grad()
            _, (hidden, _) = rnn(packed)
            F.cross_entropy(head(hidden[-1]), y).backward()
            optimizer.step()


@clean
def autoencoder_with_reparametrisation():
    class Variational(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(8, 6), nn.ReLU(True))
            self.mean, self.spread = nn.Linear(6, 2), nn.Linear(6, 2)
            self.decoder = nn.Sequential(nn.Linear(2, 6), nn.ReLU(True), nn.Linear(6, 8))

        def forward(self, x):
            hidden = self.encoder(x)
            mean, spread = self.mean(hidden), self.spread(hidden)
            code = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
            return torch.sigmoid(self.decoder(code)), mean, spread

    model = Variational()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(6):
        x = torch.rand(6, 8)
        again, mean, spread = model(x)
        loss = F.binary_cross_entropy(again, x, reduction="sum")
        loss = loss - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def normalising_weights():
    first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    second = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    third = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third, nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 1)).backward()
        optimizer.step()


@clean
def foreach_and_fused_and_differentiable_siblings():
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), **options)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()


@clean
def gradients_shown_in_a_log():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    log = []
    for x, y in DataLoader(pictures(), 6):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        norms = {n: p.grad.norm().item() for n, p in model.named_parameters()}
        optimizer.step()
        log.append((loss.detach(), out.detach().mean(0), norms))


@clean
def metric_meter_that_detaches():
    class Meter:
        def __init__(self):
            self.total, self.count = torch.zeros(()), 0

        def update(self, value, count):
            self.total += value.detach() * count
            self.count += count

    model, meter = Classifier(), Meter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(pictures(32), 4):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss, len(x))


@clean
def bad_batches_skipped():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(DataLoader(pictures(32), 4)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x * (math.inf if number == 3 else 1.0)), y)
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()


@clean
def profiled_for_a_few_steps():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.autograd.profiler.profile():
        for x, y in DataLoader(pictures(16), 8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


@clean
def anomaly_mode_left_on():
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.autograd.set_detect_anomaly(True):
        for x, y in DataLoader(pictures(16), 4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
