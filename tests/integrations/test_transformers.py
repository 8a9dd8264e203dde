"""Audits of ``Trainer.train()`` of Transformers, by the callback, with the real library."""

from __future__ import annotations

import hashlib
import pickle

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import gradcheck_suite as gs
from tests.integrations.places import accusations, comment_at, the

transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
pytest.importorskip("accelerate", reason="Accelerate, which a Trainer needs, is not installed")

from gradcheck_suite.integrations.transformers import GradcheckCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def rows(number=64):
    rng = torch.Generator().manual_seed(0)
    return [
        {
            "input_ids": torch.randint(5, 50, (6,), generator=rng),
            "labels": torch.tensor(index % 3),
        }
        for index in range(number)
    ]


def arguments(tmp_path, **options):
    return transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        num_train_epochs=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **{"report_to": [], **options},
    )


def make(tmp_path, kind=transformers.Trainer, callbacks=(), optimizers=(None, None), **options):
    return kind(
        model=bert(),
        args=arguments(tmp_path, **options),
        train_dataset=rows(),
        eval_dataset=rows(8),
        callbacks=list(callbacks),
        optimizers=optimizers,
    )  # makes the trainer


def train(tmp_path, kind=transformers.Trainer, **options):
    callback = GradcheckCallback()
    make(tmp_path, kind, [callback], **options).train()
    return callback.session


class OwnLoss(transformers.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **others):  # noqa: ARG002
        labels = inputs.pop("labels")
        out = model(**inputs)
        loss = self.loss_of(out.logits, labels)
        return (loss, out) if return_outputs else loss

    def loss_of(self, logits, labels):
        return nn.functional.cross_entropy(logits, labels)  # makes the loss


class KeepsLosses(OwnLoss):
    history = ()

    def loss_of(self, logits, labels):
        loss = nn.functional.cross_entropy(logits, labels)
        self.history = self.history or []
        self.history.append(loss)  # grows
        return loss


class HeadOfTheTrainer(OwnLoss):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.head = nn.Linear(3, 3)

    def loss_of(self, logits, labels):
        return nn.functional.cross_entropy(self.head(logits), labels)  # makes the loss


class OwnOptimizer(HeadOfTheTrainer):
    def create_optimizer(self, *args):  # noqa: ARG002
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)  # makes the optimizer
        return self.optimizer


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}])
def test_correct_training_is_silent_and_has_the_same_bits(tmp_path, options):
    callback = GradcheckCallback()
    trained = []
    for callbacks in ([callback], []):
        trainer = make(tmp_path, OwnLoss, callbacks, eval_strategy="epoch", **options)
        trainer.train()
        trained.append(trainer)
    audited, bare = trained
    assert accusations(callback.session) == []
    assert callback.session.report.summary["training_seen"]
    assert _bits(audited.model) == _bits(bare.model)
    histories = [[set(logs) for logs in each.state.log_history] for each in (audited, bare)]
    assert histories[0] == histories[1]


def _bits(model):
    values = [each.numpy().tobytes() for each in model.state_dict().values()]
    return hashlib.sha256(b"".join(values)).hexdigest()


def test_what_a_loss_keeps_is_found_at_its_line(tmp_path):
    session = train(tmp_path, KeepsLosses)
    assert accusations(session) == ["GCS201"]
    assert comment_at(the("GCS201", session).location) == "grows"


@pytest.mark.parametrize(
    ("kind", "made"),
    [(HeadOfTheTrainer, "makes the trainer"), (OwnOptimizer, "makes the optimizer")],
)
def test_the_optimizer_is_made_where_the_user_has_asked_for_it(tmp_path, kind, made):
    finding = the("GCS307", train(tmp_path, kind))
    assert "`head.weight`, `head.bias`" in finding.message
    lines = [comment_at(each) for each in (finding.location, finding.related[0].location)]
    # Before Python 3.11, a call over several lines is at its first.
    assert lines[0] == made or finding.location.function == "make"
    assert lines[1] == "makes the loss"


def test_an_optimizer_and_a_schedule_that_are_handed_in_are_audited(tmp_path):
    callback, model = GradcheckCallback(), bert()
    optimizer = torch.optim.SGD(model.bert.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    trainer = OwnLoss(
        model=model,
        args=arguments(tmp_path),
        train_dataset=rows(),
        callbacks=[callback],
        optimizers=(optimizer, schedule),
    )
    trainer.train()
    finding = the("GCS307", callback.session)
    assert "classifier.weight" in finding.message
    lines = [comment_at(each.location) for each in finding.related]
    assert "makes the loss" in (*lines, comment_at(finding.location))
    assert [each.name for each in callback.session.ledger.optimizers] == ["SGD"]


def test_an_exception_arrives_unchanged_and_ends_the_audit(tmp_path):
    class Fails(KeepsLosses):
        def loss_of(self, logits, labels):
            if len(self.history) == 10:
                raise ValueError("of the user's")
            return super().loss_of(logits, labels)

    callback, before = GradcheckCallback(), Optimizer.zero_grad
    with pytest.raises(ValueError, match=r"^of the user's$"):
        make(tmp_path, Fails, [callback]).train()
    assert Optimizer.zero_grad is before
    assert not callback._audit.runs
    assert [each.code for each in callback.session.findings] == ["GCS201"]


def test_two_trainings_are_two_audits_and_evaluation_is_none(tmp_path):
    callback, before = GradcheckCallback(), Optimizer.zero_grad
    trainer = make(tmp_path, KeepsLosses, [callback])
    trainer.evaluate()
    assert callback.session.report.summary["steps"] == 0
    trainer.train()
    first = callback.session
    trainer.history = []
    trainer.train()
    assert callback.session is not first
    assert accusations(first) == accusations(callback.session) == ["GCS201"]
    assert Optimizer.zero_grad is before


def test_one_that_is_added_later_audits_too(tmp_path):
    callback = GradcheckCallback()
    trainer = make(tmp_path, KeepsLosses)
    trainer.add_callback(callback)
    trainer.train()
    assert accusations(callback.session) == ["GCS201"]
    assert not callback._audit.runs


def test_one_that_is_removed_audits_no_more(tmp_path):
    callback = GradcheckCallback()
    trainer = make(tmp_path, OwnLoss, [callback])
    trainer.remove_callback(callback)
    trainer.train()
    assert callback.session.report.summary["steps"] == 0


def test_those_that_report_to_names_are_told_how_many_there_are(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    session = train(tmp_path, KeepsLosses, report_to=["tensorboard"])
    (file,) = tmp_path.glob("**/events.out.tfevents*")
    known = events.EventAccumulator(str(file))
    known.Reload()
    errors = session.report.count(gs.Severity.ERROR)
    assert known.Scalars("train/gradcheck/errors")[-1].value == errors
    assert known.Scalars("train/gradcheck/GCS201")[-1].value == 1


def test_a_trainer_can_be_copied_with_it(tmp_path):
    callback = GradcheckCallback()
    make(tmp_path, OwnLoss, [callback])
    copied = pickle.loads(pickle.dumps(callback))
    assert copied.session.report.summary["steps"] == 0
