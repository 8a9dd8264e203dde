"""Audits of Lightning's ``Trainer.fit``, by the callback, with the real library."""

from __future__ import annotations

import copy
import hashlib
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from tests.integrations.places import accusations, comment_at, the

L = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from gradcheck_suite.integrations.lightning import GradcheckCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def trainer(tmp_path, *callbacks, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        callbacks=list(callbacks),
        **{**quiet, **options},
    )


def batches(rows=64):
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (rows,), generator=rng)
    return DataLoader(TensorDataset(torch.randn(rows, 8, generator=rng), labels), batch_size=8)


def fit(tmp_path, module, **options):
    callback = GradcheckCallback()
    trainer(tmp_path, callback, **options).fit(module, batches(), batches())
    return callback.session


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.body(x).relu())

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)  # makes the loss
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class HeadNotOwned(Classifier):
    def configure_optimizers(self):
        return torch.optim.SGD(self.body.parameters(), lr=0.01)  # makes the optimizer


class KeepsLosses(Classifier):
    def __init__(self):
        super().__init__()
        self.losses = []

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.losses.append(loss)  # grows
        return loss


class Detaches(Classifier):
    def forward(self, x):
        hidden = self.body(x).relu().detach()  # cuts
        return self.head(hidden)


class WithoutGraph(Classifier):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        return {"loss": loss.detach(), "rows": len(batch)}  # cuts


class Frozen(Classifier):
    def __init__(self):
        super().__init__()
        self.body.requires_grad_(False)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)  # makes the optimizer


class ByHand(Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, _):
        optimizer = self.optimizers()
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.turn(optimizer, loss)

    def turn(self, optimizer, loss):
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


class NeverClears(ByHand):
    def turn(self, optimizer, loss):
        self.manual_backward(loss)
        optimizer.step()  # applies them again


class Gan(L.LightningModule):
    def __init__(self, *, toggles):
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.toggles = toggles
        self.g = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.d = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, _):
        real = batch[0]
        of_g, of_d = self.optimizers()
        fake = self.g(torch.randn(len(real), 4))
        if self.toggles:
            self.toggle_optimizer(of_g)
        self.manual_backward(nn.functional.softplus(-self.d(fake)).mean())
        of_g.step()
        of_g.zero_grad()
        if self.toggles:
            self.untoggle_optimizer(of_g)
        fooled = nn.functional.softplus(self.d(fake.detach())).mean()
        self.manual_backward(nn.functional.softplus(-self.d(real)).mean() + fooled)  # adds to it
        of_d.step()
        of_d.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.Adam(each.parameters(), lr=1e-4) for each in (self.g, self.d)]


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (Classifier, {}),
        (Classifier, {"accumulate_grad_batches": 4, "gradient_clip_val": 0.5}),
        (Classifier, {"precision": "bf16-mixed"}),
        (ByHand, {}),
    ],
)
def test_correct_training_is_silent_and_has_the_same_bits(tmp_path, module, options):
    audited, bare = module(), module()
    session = fit(tmp_path, audited, **options)
    trainer(tmp_path, **options).fit(bare, batches(), batches())
    assert accusations(session) == []
    assert session.report.summary["training_seen"]
    assert _bits(audited) == _bits(bare)


def _bits(module):
    values = [each.numpy().tobytes() for each in module.state_dict().values()]
    return hashlib.sha256(b"".join(values)).hexdigest()


def test_the_lines_are_the_users_and_not_that_of_fit(tmp_path):
    finding = the("GCS307", fit(tmp_path, HeadNotOwned()))
    assert comment_at(finding.location) == "makes the optimizer"
    assert finding.location.function == "HeadNotOwned.configure_optimizers"
    assert [comment_at(each.location) for each in finding.related] == ["makes the loss"]


@pytest.mark.parametrize(
    ("module", "code", "comment"),
    [
        (KeepsLosses, "GCS201", "grows"),
        (Detaches, "GCS401", "cuts"),
        (NeverClears, "GCS301", "applies them again"),
    ],
)
def test_mistakes_are_found_at_their_lines(tmp_path, module, code, comment):
    session = fit(tmp_path, module())
    assert accusations(session) == [code]
    assert comment_at(the(code, session).location) == comment


def test_what_torch_refuses_is_told_once_where_the_users_code_cut_it(tmp_path):
    callback = GradcheckCallback()
    with pytest.raises(RuntimeError, match="does not require grad"):
        trainer(tmp_path, callback).fit(WithoutGraph(), batches())
    (finding,) = callback.session.findings
    assert finding.code == "GCS401"
    assert comment_at(finding.location) == "cuts"


def test_frozen_parameters_are_told_where_the_optimizer_is_made(tmp_path):
    session = fit(tmp_path, Frozen())
    assert accusations(session) == []
    assert comment_at(the("GCS406", session).location) == "makes the optimizer"


def test_what_lightning_wraps_is_seen_as_the_optimizer_itself(tmp_path):
    session = fit(tmp_path, Gan(toggles=False))
    assert accusations(session) == ["GCS309"]
    assert comment_at(the("GCS309", session).location) == "adds to it"
    assert [each.name for each in session.ledger.optimizers] == ["Adam 1", "Adam 2"]


def test_a_gan_that_toggles_is_silent(tmp_path):
    assert accusations(fit(tmp_path, Gan(toggles=True))) == []


def test_an_exception_arrives_unchanged_and_ends_the_audit(tmp_path):
    class Fails(KeepsLosses):
        def training_step(self, batch, index):
            if index == 5:
                raise ValueError("of the user's")
            return super().training_step(batch, index)

    callback, before = GradcheckCallback(), Optimizer.zero_grad
    with pytest.raises(ValueError, match=r"^of the user's$"):
        trainer(tmp_path, callback).fit(Fails(), batches())
    assert Optimizer.zero_grad is before
    assert [each.code for each in callback.session.findings] == ["GCS201"]


def test_two_fits_are_two_audits(tmp_path):
    callback = GradcheckCallback()
    runner = trainer(tmp_path, callback)
    runner.fit(NeverClears(), batches())
    first = callback.session
    runner.fit_loop.max_epochs = 4
    runner.fit(ByHand(), batches())
    assert accusations(first) == ["GCS301"]
    assert accusations(callback.session) == []
    assert callback.session.report.summary["steps"] > 0


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_what_does_not_fit_is_not_audited(tmp_path, verb):
    seen = []

    class Looks(Classifier):
        def forward(self, x):
            seen.append(Optimizer.zero_grad)
            return super().forward(x)

        def test_step(self, batch, index):
            self.validation_step(batch, index)

        def predict_step(self, batch):
            return self(batch[0])

    before = Optimizer.zero_grad
    getattr(trainer(tmp_path, GradcheckCallback()), verb)(Looks(), batches())
    assert set(seen) == {before}


def test_loggers_are_told_how_many_there_are(tmp_path):
    logger = L.loggers.CSVLogger(tmp_path, name="", version="run")
    fit(tmp_path, KeepsLosses(), logger=logger)
    header, *_, last = (tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8").splitlines()
    counts = dict(zip(header.split(","), last.split(","), strict=True))
    assert float(counts["gradcheck/errors"]) == float(counts["gradcheck/GCS201"]) == 1
    assert float(counts["gradcheck/warnings"]) == 0


def test_options_are_those_of_an_audit(tmp_path):
    reports = []
    callback = GradcheckCallback(report=reports.append, max_steps=3)
    trainer(tmp_path, callback).fit(Classifier(), batches())
    assert [each.summary["steps"] for each in reports] == [3]
    assert copy.deepcopy(callback).session.report.summary["steps"] == 0


RANKS = """
import sys
import lightning.pytorch as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from gradcheck_suite.integrations.lightning import GradcheckCallback


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def training_step(self, batch, _):
        return self.head(self.body(batch[0])).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.body.parameters(), lr=0.01)


if __name__ == "__main__":
    L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy=sys.argv[1],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[GradcheckCallback()],
    ).fit(Module(), DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8))
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_two_ranks_are_told_in_one_report(tmp_path, strategy):
    program = tmp_path / "train.py"
    program.write_text(RANKS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program.name, strategy],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert done.stderr.count("warning GCS307") == 1
    assert "on all 2 ranks" in done.stderr
    assert "this backward fills them  train.py:16 in Module.training_step()" in done.stderr
