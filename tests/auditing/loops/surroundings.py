"""Correct loops in surroundings of all kinds: hooks, threads, processes, compilers, exceptions."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import gradcheck_suite as gs
from tests.auditing.loops.bank import clean


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))


def one_step(model, optimizer):
    optimizer.zero_grad()
    loss = F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 1))
    loss.backward()
    optimizer.step()
    return loss.item()


def make(rate=0.01):
    model = net()
    return model, torch.optim.Adam(model.parameters(), lr=rate)


@clean
def activations_kept_by_a_hook_that_detaches():
    model, optimizer = make()
    kept = {}
    handles = [
        layer.register_forward_hook(lambda _m, _i, o, name=name: kept.__setitem__(name, o.detach()))
        for name, layer in model.named_children()
    ]
    for _ in range(6):
        one_step(model, optimizer)
    for handle in handles:
        handle.remove()


@clean
def gradients_changed_by_hooks():
    model, optimizer = make()
    norms = []
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-0.1, 0.1))
        p.register_post_accumulate_grad_hook(lambda p: norms.append(p.grad.norm().item()))
    model[2].register_full_backward_hook(lambda _m, gi, _go: (gi[0] * 0.5,))
    for _ in range(6):
        one_step(model, optimizer)


@clean
def one_optimizer_for_each_parameter_inside_backward():
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(6):
        F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 1)).backward()


@clean
def activations_moved_to_the_cpu():
    model, optimizer = make()
    for _ in range(6):
        with save_on_cpu():
            loss = F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def activations_compressed_by_own_hooks():
    model, optimizer = make()
    for _ in range(6):
        with saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):
            loss = model(torch.randn(6, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def data_by_worker_processes():
    model, optimizer = make()
    data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    for x, y in DataLoader(data, 4, num_workers=2, shuffle=True):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(4)


@clean
def data_without_an_end():
    model, optimizer = make()
    for step, x in enumerate(DataLoader(Endless(), 6)):
        if step == 6:
            break
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@clean
def training_in_another_thread():
    model, optimizer = make()
    thread = threading.Thread(target=lambda: [one_step(model, optimizer) for _ in range(6)])
    thread.start()
    thread.join()


@clean
def two_models_in_two_threads():
    with ThreadPoolExecutor(1) as pool:  # one after the other, for the same random numbers
        list(pool.map(lambda pair: [one_step(*pair) for _ in range(4)], [make(), make()]))


@clean
def data_prepared_by_a_thread():
    model, optimizer = make()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(torch.ones, 6, 4)
        for step in range(6):
            x = coming.result()
            coming = pool.submit(torch.full, (6, 4), float(step))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


@clean
def loss_by_a_generator():
    model, optimizer = make()

    def losses():
        for _ in range(6):
            yield F.mse_loss(model(torch.randn(6, 4)), torch.randn(6, 1))

    for loss in losses():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def loop_inside_a_generator():
    model, optimizer = make()

    def training():
        while True:
            yield one_step(model, optimizer)

    steps = training()
    for _ in range(6):
        next(steps)
    steps.close()


@clean
def asynchronous_loop():
    model, optimizer = make()

    async def batch():
        await asyncio.sleep(0)
        return torch.randn(6, 4)

    async def train():
        for _ in range(6):
            x = await batch()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    asyncio.run(train())


@clean
def failing_batches_are_caught():
    model, optimizer = make()
    for step in range(8):
        optimizer.zero_grad()
        try:
            loss = model(torch.randn(6, 5 if step == 3 else 4)).square().mean()
        except RuntimeError:
            continue
        loss.backward()
        optimizer.step()


@clean
def out_of_memory_in_backward_is_caught():
    model, optimizer = make()

    def fail(_):
        raise MemoryError

    for step in range(8):
        optimizer.zero_grad()
        out = model(torch.randn(6, 4))
        if step == 3:
            out.register_hook(fail)
        try:
            out.square().mean().backward()
        except MemoryError:
            optimizer.zero_grad()
            continue
        optimizer.step()


@clean
def interrupted_by_the_keyboard():
    model, optimizer = make()
    with contextlib.suppress(KeyboardInterrupt):
        for step in range(8):
            optimizer.zero_grad()
            loss = model(torch.randn(6, 4)).square().mean()
            if step == 4:
                raise KeyboardInterrupt
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        model(torch.randn(6, 4))


@clean
def compiled_model():
    torch._dynamo.reset()
    model, optimizer = make()
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(5):
        optimizer.zero_grad()
        compiled(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
    torch._dynamo.reset()


@clean
def compiled_loss_with_breaks_in_the_graph():
    torch._dynamo.reset()
    model, optimizer = make()

    @torch.compile(backend="eager")
    def loss_of(x):
        hidden = model[1](model[0](x))
        torch._dynamo.graph_break()
        return model[2](hidden).square().mean()

    for _ in range(5):
        optimizer.zero_grad()
        loss_of(torch.randn(6, 4)).backward()
        optimizer.step()
    torch._dynamo.reset()


@clean
def traced_in_the_middle_of_training():
    model, optimizer = make()
    for _ in range(3):
        for _ in range(2):
            one_step(model, optimizer)
        model.eval()
        with torch.no_grad():
            torch.fx.symbolic_trace(model)(torch.randn(2, 4))
            torch.export.export(model, (torch.randn(2, 4),))
        model.train()


@clean
def data_parallel_in_one_process():
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=(Path(folder) / "meet").as_uri(), rank=0, world_size=1
        )
        try:
            model = nn.parallel.DistributedDataParallel(net())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for step in range(8):
                quiet = model.no_sync() if step % 2 == 0 else contextlib.nullcontext()
                with quiet:
                    model(torch.randn(6, 4)).square().mean().div(2).backward()
                if step % 2:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
        finally:
            torch.distributed.destroy_process_group()


CAN_SHARD_ON_THE_CPU = hasattr(torch.cpu.Stream, "record_event")
"""What fully_shard calls, which torch 2.6 has for accelerators alone."""


@(clean if CAN_SHARD_ON_THE_CPU else lambda loop: loop)
def sharded_in_one_process():
    # The parameters are wrappers, whose address is nobody's memory.
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=(Path(folder) / "meet").as_uri(), rank=0, world_size=1
        )
        try:
            model = net()
            mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
            torch.distributed.fsdp.fully_shard(model, mesh=mesh)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(6, 4)).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        finally:
            torch.distributed.destroy_process_group()


@clean
def audited_within_an_audit():
    model, optimizer = make()
    for _ in range(2):
        one_step(model, optimizer)
    with gs.audit() as session:
        for _ in range(3):
            one_step(model, optimizer)
    assert session.findings == ()
    for _ in range(2):
        one_step(model, optimizer)


@clean
def saved_to_a_file_each_epoch():
    model, optimizer = make()
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(3):
            for _ in range(2):
                one_step(model, optimizer)
            model.eval()
            with torch.no_grad():
                model(torch.randn(6, 4))
            torch.save(model, Path(folder) / f"{epoch}.pt")
            torch.save(optimizer.state_dict(), Path(folder) / "optimizer.pt")
            model.train()


@clean
def own_function_and_double_backward():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad

    model, optimizer = make()
    for _ in range(5):
        x = torch.randn(6, 4, requires_grad=True)
        out = Cube.apply(model(x))
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        optimizer.zero_grad()
        (out.square().mean() + slope.square().mean()).backward()
        optimizer.step()


@clean
def own_optimizer():
    class SignDescent(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):  # noqa: ARG002 - the usual signature
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.add_(p.grad.sign(), alpha=-group["lr"])

    model = net()
    optimizer = SignDescent(model.parameters(), 0.01)
    for _ in range(6):
        one_step(model, optimizer)


@clean
def kept_for_a_plot_after_training():
    model, optimizer = make()
    curve = torch.zeros(6)
    for step in range(6):
        curve[step] = one_step(model, optimizer)
    assert curve.sum() > 0
