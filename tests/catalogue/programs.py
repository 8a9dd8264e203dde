"""Run the sources of catalogue entries under what is to find their mistakes at run time.

A program takes the names of a source, its example or its correction, and returns what was found.
It is told apart by nothing else, so that what is found in the example and not in the correction
comes of the mistake.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest import mock

import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.distributed.merging import unpacked
from tests.auditing.distributed.jobs import run_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from gradcheck_suite.findings import Finding

Found: TypeAlias = "tuple[Finding, ...]"
Program: TypeAlias = "Callable[[ModuleType], Found]"
Batches: TypeAlias = "list[tuple[torch.Tensor, torch.Tensor]]"


def audited(run: Callable[[], object]) -> Found:
    """Return what an audit finds while ``run`` runs, also if that ends in an error of torch's."""
    kept = None
    with gs.audit() as session:
        try:
            kept = run()
        except (
            RuntimeError,
            ValueError,
            TypeError,
            AttributeError,
            IndexError,
            AssertionError,
        ) as error:
            kept = error
    del kept
    return session.findings


def verified(function: Callable[..., Any], *inputs: Any, **options: Any) -> Found:
    """Return what a check of the gradients finds."""
    return gs.check_gradients(function, inputs, **options).findings


def batches(count: int = 4, *, scale: float = 1.0) -> Batches:
    """Make batches for a regression from 8 features to 1."""
    return [(scale * torch.randn(4, 8), scale * torch.randn(4, 1)) for _ in range(count)]


def labelled(count: int = 4) -> Batches:
    """Make batches for a classification of 8 features into 3 classes."""
    return [(torch.randn(4, 8), torch.tensor([0, 1, 2, 1])) for _ in range(count)]


def wide(*shape: int) -> torch.Tensor:
    """Make an input of double precision that requires grad."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def regression() -> nn.Sequential:
    """Make a model that saves activations."""
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def classifier() -> nn.Sequential:
    """Make a model whose layers ask whether they are in training."""
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def steps(model: nn.Module, loss: Callable[[], torch.Tensor], count: int = 3) -> Callable[[], None]:
    """Return a training loop that is right, around a loss."""

    def run() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(count):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    return run


def _train(names: ModuleType) -> Found:
    model = regression()
    return audited(lambda: names.train(model, batches()))


def _train_optimizer(names: ModuleType) -> Found:
    model = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return audited(lambda: names.train(model, optimizer, batches()))


def _on_one_batch(names: ModuleType) -> Found:
    model = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 8), torch.randn(16, 1)
    return audited(lambda: names.train(model, optimizer, x, y))


def _image_classifier(names: ModuleType) -> Found:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(10)]
    return audited(lambda: names.train(model, optimizer, rows))


def _train_scaled(names: ModuleType) -> Found:
    model = regression()
    return audited(lambda: names.train(model, batches(), device="cpu"))


def _train_labelled(names: ModuleType) -> Found:
    model = nn.Linear(8, 3)
    return audited(lambda: names.train(model, labelled()))


def _gan(names: ModuleType) -> Found:
    generator = nn.Linear(2, 3)
    critic = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    loader = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)]
    return audited(lambda: names.train(generator, critic, loader))


def _best(names: ModuleType) -> Found:
    losses = iter((3.0, 1.0, 2.0, 2.0))
    return audited(lambda: names.fit(nn.Linear(8, 1), batches(), lambda _: next(losses)))


def _damped(names: ModuleType) -> Found:
    model = nn.Linear(8, 1)
    optimizer = names.DampedSGD(model.parameters(), 0.1)
    return audited(lambda: [names.train(model, optimizer, x, y) for x, y in batches()])


def _resumed_from(names: ModuleType) -> Found:
    checkpoint = regression().state_dict()
    return audited(lambda: names.fit(names.resume(checkpoint), batches()))


def _averaged(names: ModuleType) -> Found:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return audited(lambda: names.train(model, optimizer, batches()))


def _regressed(names: ModuleType) -> Found:
    pairs = [(torch.randn(6, 3), torch.rand(6)) for _ in range(8)]
    model = names.build()
    return audited(lambda: names.train(model, pairs))


def _module(make: Callable[[ModuleType], nn.Module], *shape: int) -> Program:
    """Train a module that a source defines."""

    def program(names: ModuleType) -> Found:
        model = make(names)
        return audited(steps(model, lambda: model(torch.randn(shape)).pow(2).mean()))

    return program


def _function(name: str, shape: tuple[int, ...], *arguments: Any) -> Program:
    """Train a layer in front of an autograd Function that a source defines."""

    def program(names: ModuleType) -> Found:
        model = nn.Linear(shape[-1], shape[-1])
        function = getattr(names, name).apply

        def loss() -> torch.Tensor:
            output = function(model(torch.randn(shape)), *arguments)
            return output.pow(2).mean() if isinstance(output, torch.Tensor) else output[0].mean()

        return audited(steps(model, loss))

    return program


def _checked(
    name: str, *shapes: tuple[int, ...], more: tuple[Any, ...] = (), **options: Any
) -> Program:
    """Check the gradients of an autograd Function that a source defines."""

    def program(names: ModuleType) -> Found:
        function = getattr(names, name).apply
        return verified(function, *(wide(*shape) for shape in shapes), *more, **options)

    return program


def _head(names: ModuleType) -> Found:
    return audited(lambda: names.make_head(8, 3))


def _rebound(names: ModuleType) -> Found:
    return audited(lambda: names.optimizer_of(names.Scale(3)))


def _pyramid(names: ModuleType) -> Found:
    model = names.Pyramid()

    def loss() -> torch.Tensor:
        merged, energy = model([torch.randn(2, 8) for _ in range(3)])
        return merged.sum() + energy

    return audited(steps(model, loss))


def _corrupted(names: ModuleType) -> Found:
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)

    def run() -> None:
        for _ in range(3):
            names.step(encoder, head, optimizer, 3 * torch.randn(8, 4), torch.randn(8, 4))

    return audited(run)


def _decoder(names: ModuleType) -> Found:
    model = names.Decoder(3, 4)
    loss = lambda: model(torch.randn(24, 2, 3), torch.zeros(2, 4)).pow(2).mean()  # noqa: E731
    return audited(steps(model, loss))


def _scan(names: ModuleType) -> Found:
    model = names.Scan(3)
    return audited(steps(model, lambda: model(torch.randn(4, 3)).pow(2).mean()))


def _kept(names: ModuleType) -> Found:
    model = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return audited(lambda: names.train_epoch(model, optimizer, batches(8)))


def _carried(names: ModuleType) -> Found:
    cell = nn.GRUCell(3, 4)
    loader = [(torch.randn(2, 3), torch.randn(2, 4)) for _ in range(4)]
    return audited(lambda: names.train(cell, loader))


def _evaluated(names: ModuleType) -> Found:
    model = nn.Linear(8, 3)

    def run() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            for x, y in labelled():
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            names.evaluate(model, labelled(8))

    return audited(run)


def _stepped(names: ModuleType) -> Found:
    model = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        for x, y in batches():
            names.train_step(model, optimizer, x, y)

    return audited(run)


def _hooked(names: ModuleType) -> Found:
    model = regression()

    def run() -> object:
        features = names.Features(model[0])
        steps(model, lambda: model(torch.randn(4, 8)).pow(2).mean(), 8)()
        return features

    return audited(run)


def _new_head(names: ModuleType) -> Found:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x).relu())

    model = Classifier()
    return audited(lambda: names.finetune(model, labelled(), 3))


def _resumed(names: ModuleType) -> Found:
    model, state = regression(), regression().state_dict()
    return audited(lambda: names.resume(model, state, batches()))


def _accumulated(names: ModuleType) -> Found:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(8, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def train(state: Any, parts: list[Any], accumulation_steps: int) -> None:
        names.train(*state, parts, accumulation_steps)

    return gs.check_accumulation(make, train, (torch.randn(8, 8), torch.randn(8, 1))).findings


def _two_optimizers(names: ModuleType) -> Found:
    model = nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 1))
    return audited(lambda: names.train(model, batches()))


def _run_in_eval(names: ModuleType) -> None:
    names.evaluate(names.Network(4), torch.randn(2, 4))


def _interrupted(names: ModuleType) -> Found:
    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]

    def run() -> None:
        model, optimizer, decay = names.begin()
        names.train(model, optimizer, decay, data)
        names.resume(names.save(model, optimizer, decay), data)

    return audited(run)


def _regression_of_ten(names: ModuleType) -> Found:
    model = regression()
    return audited(lambda: names.train(model, batches(10)))


def _regression_of_its_own(names: ModuleType) -> Found:
    return audited(lambda: names.train(batches(10)))


def _loaded(names: ModuleType) -> Found:
    checkpoint = names.Model().state_dict()
    return audited(lambda: names.train(batches(6), checkpoint))


def _warmed_up(names: ModuleType) -> Found:
    model = regression()
    return audited(lambda: names.train(model, batches(8), 2))


def _cut(names: ModuleType) -> Found:
    encoder, prior, decoder = nn.Linear(8, 2), nn.Linear(2, 1), nn.Linear(2, 8)
    model = nn.ModuleList((encoder, prior, decoder))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = [torch.randn(4, 8) for _ in range(4)]
    return audited(lambda: names.train(encoder, prior, decoder, optimizer, loader))


def _backbone(names: ModuleType) -> Found:
    backbone, head = nn.Linear(8, 4), nn.Linear(4, 3)
    return audited(lambda: names.train(backbone, head, labelled()))


def _frozen(names: ModuleType) -> Found:
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

    def run() -> None:
        optimizer = names.freeze_first_layers(model)
        for _ in range(3):
            x = torch.randn(4, 8)
            for layer in model.layers:
                x = layer(x).tanh()
            optimizer.zero_grad()
            x.pow(2).mean().backward()
            optimizer.step()

    return audited(run)


def _differentiated_twice(names: ModuleType) -> Found:
    model = nn.Linear(4, 4)

    def loss() -> torch.Tensor:
        x = torch.randn(2, 4, requires_grad=True)
        output = names.Sigmoid.apply(model(x))
        (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output.mean() + gradient.pow(2).sum()

    return audited(steps(model, loss))


def _intermediate(names: ModuleType) -> Found:
    encoder, head = nn.Linear(3, 3), nn.Linear(3, 1)
    return audited(lambda: names.activation_gradient(encoder, head, torch.randn(2, 3)))


def _two_levels(names: ModuleType) -> Found:
    loader = [(torch.randn(6, 3), torch.randint(4, (6,))) for _ in range(4)]
    return audited(lambda: names.train(nn.Linear(3, 6), loader))


def _thawed(names: ModuleType) -> Found:
    model = nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 1))
    return audited(lambda: names.train(model, batches(6)))


def _legacy_call(names: ModuleType) -> Found:
    model = nn.Linear(4, 4)
    return audited(steps(model, lambda: names.double(model(torch.randn(2, 4))).pow(2).mean()))


def _weight_alone(names: ModuleType) -> Found:
    weight = nn.Parameter(torch.randn(4, 3))

    def run() -> None:
        optimizer = torch.optim.SGD([weight], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            names.Linear.apply(torch.randn(2, 3), weight).pow(2).mean().backward()
            optimizer.step()

    return audited(run)


def _weight_checked(names: ModuleType) -> Found:
    return verified(names.Linear.apply, wide(2, 3), wide(4, 3))


def _distance(names: ModuleType) -> Found:
    model = nn.Linear(8, 2)

    def loss() -> torch.Tensor:
        points = model(torch.randn(4, 8))
        return names.pairwise_distance(points, points).mean()

    return audited(steps(model, loss))


def _distance_checked(names: ModuleType) -> Found:
    return verified(lambda points: names.pairwise_distance(points, points), wide(3, 2))


def _attention(names: ModuleType) -> Found:
    return verified(names.attention, wide(3, 4), wide(5, 4), wide(5, 4))


def _normalized(names: ModuleType) -> Found:
    # The front end alone decides here; generating code would only take time.
    with mock.patch("torch.compile", partial(torch.compile, backend="eager")):
        return verified(names.normalize, wide(2, 3), compiled=True)


def _widened(names: ModuleType) -> Found:
    model = nn.Linear(3, 64)
    return gs.trace_graph(names.loss(model, torch.randn(2, 3)), model).report.findings


def _fitted(names: ModuleType) -> Found:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return audited(lambda: names.fit(model, optimizer, labelled(), labelled(), 3))


def _two_heads(names: ModuleType) -> Found:
    trunk, heads = nn.Linear(8, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.1)

    def train() -> None:
        for x, y in batches():
            names.train_step(trunk, heads, optimizer, x, (y, -y))

    return audited(train)


def _classified(names: ModuleType) -> Found:
    """Let the exception leave the audit: torch raises it before the engine runs."""
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(RuntimeError), gs.audit() as session:
        for x, labels in labelled():
            names.train_step(model, optimizer, x, labels)
    return session.findings


def _predicted(names: ModuleType) -> Found:
    model = nn.Linear(8, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with mock.patch.object(warnings, "showwarning"):
            return audited(lambda: names.predict(model, torch.randn(2, 8)))


def _logged(names: ModuleType) -> Found:
    """Let the exception leave the audit: what a program catches of it, nobody is told of."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(IndexError), gs.audit() as session:
        for x, y in batches():
            names.train_step(model, optimizer, x, y)
    return session.findings


_ON_RANKS = """

import sys

from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradcheck_suite

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(rank)
batches = [(torch.randn(3, 2), torch.randn(3, 1)) for _ in range(4)]
with gradcheck_suite.audit(report="found.json"):
    model = nn.Linear(2, 1)
    if sys.argv[1] == "GCS801":
        train(model, batches)
    else:
        ddp = DistributedDataParallel(model)
        train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), batches)
"""


def _on_two_ranks(code: str) -> Program:
    """Return what two ranks find that run a source together, as they are told by rank 0."""

    def run(names: ModuleType) -> Found:
        source = f"import torch\n{Path(str(names.__file__)).read_text('utf-8')}{_ON_RANKS}"
        with TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(source, encoding="utf-8")
            runs = run_job(["train.py", code], cwd=Path(folder))
            assert [run.returncode for run in runs] == [0, 0], runs
            return unpacked((Path(folder) / "found.json").read_bytes()).findings

    return run


PROGRAMS: dict[str, tuple[Program, ...]] = {
    "GCS101": (_head,),
    "GCS102": (_rebound,),
    "GCS103": (_pyramid,),
    "GCS104": (_corrupted,),
    "GCS106": (_decoder,),
    "GCS107": (_scan,),
    "GCS108": (_module(lambda names: names.model, 4, 8),),
    "GCS109": (_gan,),
    "GCS110": (_best,),
    "GCS111": (_damped,),
    "GCS112": (_on_one_batch,),
    "GCS201": (_kept,),
    "GCS202": (_carried,),
    "GCS203": (_train_optimizer,),
    "GCS204": (_evaluated,),
    "GCS205": (_function("Square", (4, 3)),),
    "GCS206": (_stepped,),
    "GCS207": (_hooked,),
    "GCS208": (_two_heads,),
    "GCS209": (_image_classifier,),
    "GCS301": (_train,),
    "GCS302": (_train,),
    "GCS303": (_train,),
    "GCS304": (_train,),
    "GCS305": (_train_scaled,),
    "GCS306": (_train,),
    "GCS307": (_new_head,),
    "GCS308": (_resumed,),
    "GCS309": (_gan,),
    "GCS310": (_train_scaled,),
    "GCS311": (_accumulated,),
    "GCS312": (_two_optimizers,),
    "GCS313": (_warmed_up,),
    "GCS314": (_train_optimizer,),
    "GCS315": (_two_optimizers,),
    "GCS316": (_train_optimizer,),
    "GCS317": (_interrupted,),
    "GCS318": (_regression_of_its_own,),
    "GCS319": (_regression_of_ten,),
    "GCS320": (_regression_of_its_own,),
    "GCS401": (_cut,),
    "GCS402": (_backbone,),
    "GCS403": (_module(lambda names: names.Block(4), 2, 4),),
    "GCS404": (_module(lambda names: names.Network(4, 2), 2, 4),),
    "GCS405": (_train_labelled,),
    "GCS406": (_frozen,),
    "GCS407": (_intermediate,),
    "GCS408": (_module(lambda names: names.Network(4), 2, 4),),
    "GCS409": (_thawed,),
    "GCS410": (_classified,),
    "GCS411": (_two_levels,),
    "GCS412": (_module(lambda names: names.Encoder(4, 3), 2, 4),),
    "GCS413": (_resumed_from,),
    "GCS414": (lambda names: audited(lambda: names.train(torch.randn(12, 4, 6))),),
    "GCS415": (_loaded,),
    "GCS501": (_function("Scale", (2, 4), 3.0), _checked("Scale", (2, 4), more=(3.0,))),
    "GCS502": (_legacy_call,),
    "GCS503": (_function("ShiftedExp", (2, 4)), _checked("ShiftedExp", (2, 4))),
    "GCS505": (_checked("Threshold", (2, 4), more=(0.0,)),),
    "GCS506": (_function("Relu", (2, 4)), _checked("Relu", (2, 4))),
    "GCS507": (_differentiated_twice,),
    "GCS508": (_weight_alone, _weight_checked),
    "GCS601": (_checked("RMSNorm", (2, 4)),),
    "GCS602": (_checked("Cube", (2, 4)),),
    "GCS603": (_checked("Double", (2, 4)),),
    "GCS604": (_distance, _distance_checked),
    "GCS605": (_checked("Cube", (4,), forward_mode=True),),
    "GCS606": (_checked("Cumulate", (4,), batched=True),),
    "GCS607": (_checked("SumAndDifference", (4,), (4,)),),
    "GCS608": (_attention,),
    "GCS609": (_checked("Scale", (2, 3), more=(2.0,)),),
    "GCS610": (_checked("Identity", (4,)),),
    "GCS611": (_normalized,),
    "GCS612": (_widened,),
    "GCS613": (_module(lambda names: names.Encoder(4), 2, 4),),
    "GCS614": (_regressed,),
    "GCS701": (_fitted,),
    "GCS702": (_fitted,),
    "GCS703": (lambda names: audited(lambda: _run_in_eval(names)),),
    "GCS704": (_averaged,),
    "GCS705": (_regression_of_its_own,),
    "GCS706": (_regression_of_its_own,),
    "GCS801": (_on_two_ranks("GCS801"),),
    "GCS802": (_on_two_ranks("GCS802"),),
    "GCS902": (_predicted,),
    "GCS903": (_logged,),
}
