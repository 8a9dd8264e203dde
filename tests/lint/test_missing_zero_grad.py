from __future__ import annotations

import re

import pytest

from gradcheck_lint.engine import lint_source
from gradcheck_suite.severity import Severity

_HEADER = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
_MARK = re.compile(r"# !")

_MISTAKES = {
    "comprehensions and generators that are run to their end": """
def step(model, opt, x):
    loss = model(x).mean()
    loss.backward()
    opt.step()  # !
    return loss.item()
class T:
    def __init__(self, model):
        self.model, self.opt = model, torch.optim.SGD(model.parameters())
    def step(self, x):
        loss = self.model(x).mean()
        loss.backward()
        self.opt.step()  # !
        return loss.item()
    def fit(self, loader):
        return [self.step(x) for x in loader if len(x)]
def run(model, loader, opt):
    return sum(step(model, opt, x) for x in list(loader)) / len(loader)
""",
    "a dictionary of losses": """
def step(model, opt, x):
    loss = model(x).mean()
    loss.backward()
    opt.step()  # !
    return loss.item()
def run(model, loader, opt):
    return {i: float(step(model, opt, x)) for i, x in enumerate(loader)}
""",
    "a window by a name": """
def train(model, loader, opt, accum):
    opt.zero_grad()
    for i, x in enumerate(loader):
        is_last = (i + 1) % accum == 0
        model(x).mean().backward()
        if is_last:
            opt.step()  # !
""",
    "simple main": """
def main():
    model = nn.Linear(3,1)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(100):
        x = torch.randn(4,3)
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()  # !
main()
""",
    "while": """
model = nn.Linear(3,1)
optimizer = torch.optim.Adam(model.parameters())
step = 0
while step < 100:
    loss = model(torch.randn(3)).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # !
    step += 1
    if step % 10 == 0:
        print(step, loss.item(), optimizer.param_groups[0]['lr'])
""",
    "tqdm, scheduler, logging": """
from tqdm import tqdm
class Trainer:
    def __init__(self, model, cfg):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
    def train_epoch(self, loader):
        self.model.train()
        for batch in tqdm(loader):
            out = self.model(batch["x"].to(self.device))
            loss = F.mse_loss(out, batch["y"])
            loss.backward()
            self.optimizer.step()  # !
            self.scheduler.step()
            self.log({"loss": loss.item()})
    def log(self, d):
        print(d)
""",
    "zero in outer only": """
def train(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        model.train()
        optimizer.zero_grad()
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()  # !
""",
    "helper split": """
def step(model, x, optimizer):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()  # !
    return loss.item()
def train(model, loader, optimizer):
    for x in loader:
        l = step(model, x, optimizer)
""",
    "factory": """
def make(model):
    return torch.optim.SGD(model.parameters(), lr=.1)
def train(model, loader):
    sgd = make(model)
    for x in loader:
        model(x).sum().backward()
        sgd.step()  # !
""",
    "zero before loop": """
def train(model, loader, optim):
    optim.zero_grad()
    for x in loader:
        model(x).sum().backward()
        optim.step()  # !
""",
    "two optims none zeroed": """
def train(G, D, loader, opt_g, opt_d):
    for x in loader:
        d = D(x).mean()
        d.backward()
        opt_d.step()  # !
        g = -D(G(x)).mean()
        g.backward()
        opt_g.step()  # !
""",
    "if train both": """
def run(model, loader, optimizer=None, train=True):
    for x in loader:
        loss = model(x).mean()
        if optimizer is not None:
            loss.backward()
            optimizer.step()  # !
""",
    "continue": """
def run(model, loader, optimizer):
    for x in loader:
        loss = model(x).mean()
        if torch.isnan(loss):
            continue
        loss.backward()
        optimizer.step()  # !
""",
    "try": """
def run(model, loader, optimizer):
    for x in loader:
        try:
            loss = model(x).mean()
            loss.backward()
            optimizer.step()  # !
        except RuntimeError as e:
            print(e)
""",
    "early stop": """
def run(model, loader, optimizer):
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()  # !
        if loss.item() < 0.1:
            break
""",
}

_CORRECT = {
    "comprehensions whose steps have gradients of their own": """
def step(model, opt, x):
    model(x).mean().backward()
    opt.step()
def fresh(model, x):
    opt = torch.optim.SGD(model.parameters())
    step(model, opt, x)
    return model
def many(models, x):
    return [fresh(model, x) for model in models]
def pairs(models, opts, x):
    return [step(model, opt, x) for model, opt in zip(models, opts)]
def each(models, x):
    return [step(model, torch.optim.SGD(model.parameters()), x) for model in models]
def one(model, opt, x):
    return [step(model, opt, x) for _ in range(1)]
""",
    "loops that hand over another optimizer each time": """
def step(model, opt, x):
    model(x).mean().backward()
    opt.step()
def whole(agent, x):
    agent.model(x).mean().backward()
    agent.opt.step()
def of_parts(agents, x):
    for agent in agents:
        step(agent.model, agent.opt, x)
    for agent in agents:
        whole(agent, x)
    for i in range(3):
        step(agents[i].model, agents[i].opt, x)
def new(models, x):
    for model in models:
        step(model, torch.optim.SGD(model.parameters()), x)
""",
    "a generator that is run bit by bit": """
def step(model, opt, x):
    model(x).mean().backward()
    opt.step()
def run(model, opt, loader):
    for _ in (step(model, opt, x) for x in loader):
        opt.zero_grad()
""",
    "a comprehension that zeroes": """
def step(model, opt, x):
    opt.zero_grad()
    loss = model(x).mean()
    loss.backward()
    opt.step()
    return loss.item()
def run(model, opt, loader):
    return [step(model, opt, x) for x in loader], sum(step(model, opt, x) for x in loader)
""",
    "the backwards of a comprehension, and one step": """
def add(model, x):
    loss = model(x).mean()
    loss.backward()
    return loss.item()
def run(model, opt, batches):
    for batch in batches:
        opt.zero_grad()
        losses = [add(model, x) for x in batch]
        opt.step()
""",
    "closure lambda": """
def f(model, loader, opts):
    for x in loader:
        [o.zero_grad() for o in opts]
        model(x).sum().backward()
        for o in opts: o.step()
""",
    "self.zero": """
from base import Base
class T(Base):
    def fit(self, loader):
        for x in loader:
            self.prepare()
            loss = self.model(x).mean()
            loss.backward()
            self.optimizer.step()
""",
    "loader of models": """
def f(models, opts, x):
    for m, o in zip(models, opts):
        m(x).sum().backward()
        o.step()
    for i in range(3):
        models[i](x).sum().backward()
        opts[i].step()
""",
    "env.step": """
def f(env, policy, optimizer):
    for t in range(10):
        env.step(1)
        loss = policy(t)
        loss.backward()
    optimizer.step()
""",
    "custom numpy": """
# not torch
class Net:
    def backward(self, g): pass
    def step(self): pass
class SGD:
    def step(self): pass
def f(net, data):
    optimizer = SGD()
    for d in data:
        net.backward(d)
        optimizer.step()
""",
    "deepspeed-like": """
def f(engine, loader):
    for x in loader:
        loss = engine(x)
        engine.backward(loss)
        engine.step()
""",
}


@pytest.mark.parametrize("source", _MISTAKES.values(), ids=_MISTAKES)
def test_mistake_is_reported_on_exactly_the_marked_lines(source):
    text = _HEADER + source
    marked = [line for line, code in enumerate(text.split("\n"), 1) if _MARK.search(code)]
    found = lint_source(text.encode(), "sample.py")
    assert [(f.code, f.location.line) for f in found] == [("GCS301", line) for line in marked]


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_correct_look_alike_is_silent(source):
    found = lint_source((_HEADER + source).encode(), "sample.py")
    assert [finding for finding in found if finding.severity > Severity.NOTE] == []
