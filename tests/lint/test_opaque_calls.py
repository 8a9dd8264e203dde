"""A call that can't be looked into bounds what is claimed where it stands, and nothing else."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source
from tests.lint.marks import check_marked, check_quiet

_MISTAKES = {
    "an evaluation, a schedule or a warm-up in the loop of a missing reset": """
        import torch
        from utils import evaluate, adjust_learning_rate, warmup_learning_rate

        def train(model, loader, criterion, optimizer, epochs, args):
            for epoch in range(epochs):
                adjust_learning_rate(args, optimizer, epoch)
                for i, (x, y) in enumerate(loader):
                    warmup_learning_rate(args, epoch, i, len(loader), optimizer)
                    loss = criterion(model(x), y)
                    loss.backward()
                    optimizer.step()  # GCS301 warning

        def train_and_evaluate(model, loader, criterion, optimizer):
            for i, (x, y) in enumerate(loader):
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()  # GCS301 warning
                if i % 100 == 0:
                    train_loss, val_loss = evaluate_model(model, loader, loader)
        """,
    "a function that computes the loss": """
        import torch

        def train(model, loader, optimizer):
            for x, y in loader:
                loss = compute_loss(model, x, y)
                loss.backward()
                optimizer.step()  # GCS301

        def fit(model, loader, optimizer):
            for x, y in loader:
                out = apply_model(model, x, y)
                out.backward()
                optimizer.step()  # GCS301 warning
        """,
    "a function whose name leaves it open": """
        import torch
        from .tools import prepare

        def train(model, loader, optimizer):
            for x in loader:
                prepare(optimizer)
                model(x).mean().backward()
                optimizer.step()  # GCS301 note
        """,
    "a reset between backward and step, with calls elsewhere": """
        import torch
        from .tools import adjust_learning_rate, prepare

        def train(model, loader, criterion, optimizer):
            for x, y in loader:
                prepare(model, optimizer)
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.zero_grad()  # GCS302
                optimizer.step()
                adjust_learning_rate(optimizer)
        """,
    "a reset between backward and step, with a call between them": """
        import torch
        from .tools import prepare

        def train(model, loader, criterion, optimizer):
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.zero_grad()  # GCS302 note
                prepare(model, optimizer)
                optimizer.step()
        """,
    "a clipping after the step": """
        import torch
        from .tools import adjust_learning_rate, evaluate

        def train(model, loader, criterion, optimizer):
            for x, y in loader:
                adjust_learning_rate(optimizer)
                loss = criterion(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # GCS304 warning
                evaluate(model)
        """,
    "no backward at all": """
        import torch
        from .tools import evaluate

        def train(model, loader, criterion, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                optimizer.step()  # GCS303 warning
                evaluate(model)
        """,
    "nothing that concerns another optimizer": """
        import torch
        from .tools import evaluate

        def train(G, D, opt_d, opt_g, loader):
            for real, z in loader:
                opt_d.zero_grad()
                opt_g.zero_grad()
                (D(G(z)).mean() - D(real).mean()).backward()
                opt_d.step()
                evaluate(G)
                (-D(G(z)).mean()).backward()
                opt_g.step()
        """,
}


@pytest.mark.parametrize("source", _MISTAKES.values(), ids=_MISTAKES)
def test_mistake_is_told_with_what_bounds_it(source: str) -> None:
    check_marked(source)


@pytest.mark.parametrize(
    "imported",
    [
        "from transformers import Trainer",
        "import deepspeed",
        "from pytorch_lightning import seed_everything",
        "from ignite.metrics import Accuracy",
        "import composer",
    ],
)
def test_an_import_alone_silences_nothing(imported: str) -> None:
    check_marked(
        f"""
        import torch
        {imported}

        def train(model, loader, criterion, optimizer):
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()  # GCS301

        def fit(model, loader, criterion, optimizer):
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.zero_grad()  # GCS302
                optimizer.step()
        """
    )


def test_the_message_names_the_call() -> None:
    source = """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        prepare(optimizer)
        model(x).mean().backward()
        optimizer.step()
"""
    (finding,) = lint_source(source.encode(), "train.py")
    assert finding.message.endswith(
        "; `prepare()` can't be looked into: this holds if it leaves the gradients alone"
    )


_CORRECT = {
    "the name says that it zeroes": """
        import torch
        from .tools import reset_grads, zero

        def train(model, loader, optimizer):
            for x in loader:
                reset_grads(model)
                model(x).mean().backward()
                optimizer.step()

        def fit(model, loader, optimizer):
            for x in loader:
                zero(optimizer)
                model(x).mean().backward()
                optimizer.step()
        """,
    "somebody else differentiates": """
        import torch
        from .tools import accumulate, run_backward

        def train(model, loader, optimizer):
            for x in loader:
                optimizer.zero_grad()
                accumulate(model, x)
                optimizer.step()

        def fit(model, loader, optimizer):
            for x in loader:
                model(x).sum().backward()
                optimizer.zero_grad()
                run_backward(model, x)
                optimizer.step()
        """,
    "a method of the engine's class": """
        import torch
        from transformers import Trainer
        from pytorch_lightning import LightningModule

        class Own(Trainer):
            def training_step(self, model, inputs):
                loss = self.compute_loss(model, inputs)
                loss.backward()
                return loss.detach()

            def epoch(self, model, loader):
                for x in loader:
                    model(x).mean().backward()
                    self.optimizer.step()

        class Net(LightningModule):
            def validation_step(self, batch, index):
                self.eval()
                return self(batch)
        """,
}


@pytest.mark.parametrize("source", _CORRECT.values(), ids=_CORRECT)
def test_correct_program_is_not_accused(source: str) -> None:
    check_quiet(source)
