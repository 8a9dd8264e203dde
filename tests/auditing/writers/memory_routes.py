"""Writers that torch does not see: numpy, ctypes, buffers, other threads."""

from __future__ import annotations

import array as plain_array
import ctypes
import io
import mmap
import random
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from tests.auditing.writers.bank import case, parts


def batch():
    """An array, a view of it as a tensor, and a forward that saves it."""
    array = np.linspace(1, 2, 12, dtype=np.float32).reshape(4, 3)
    layer = nn.Linear(3, 1)
    seen = torch.from_numpy(array)
    return array, seen, lambda: layer(seen).pow(2).sum()


@case
def numpy_augmented(fixed):
    array, _, forward = batch()

    def write():
        nonlocal array
        array -= 1.5  # <- written

    return parts(fixed, forward, write)


@case
def numpy_slice(fixed):
    array, _, forward = batch()

    def write():
        array[1:3] = array[1:3] + 1  # <- written

    return parts(fixed, forward, write)


@case
def numpy_element(fixed):
    array, _, forward = batch()

    def write():
        array[3, 2] += 1e-3  # <- written

    return parts(fixed, forward, write)


@case
def numpy_copyto(fixed):
    array, _, forward = batch()

    def write():
        noise = np.random.default_rng().standard_normal((4, 3), dtype=np.float32)
        np.copyto(array, noise)  # <- written

    return parts(fixed, forward, write)


@case
def numpy_out(fixed):
    array, _, forward = batch()

    def write():
        np.multiply(array, 1.5, out=array)  # <- written

    return parts(fixed, forward, write)


@case
def numpy_permutation(fixed):
    array, _, forward = batch()

    def write():
        array[...] = np.roll(array, 1)  # <- written

    return parts(fixed, forward, write)


@case
def numpy_fill(fixed):
    array, _, forward = batch()

    def write():
        array.fill(float(array[0, 0]) + 1)  # <- written

    return parts(fixed, forward, write)


@case
def numpy_of_a_tensor(fixed):
    _, seen, forward = batch()

    def write():
        seen.numpy()[0] *= -1  # <- written

    return parts(fixed, forward, write)


@case
def numpy_of_a_hidden_tensor(fixed):
    leaf = torch.linspace(0.5, 1.5, 6).requires_grad_()
    kept = []

    def forward():
        kept[:] = [leaf.exp()]
        return kept[0].pow(2).sum()

    def write():
        kept[0].detach().numpy()[2:4] = 0.25  # <- written

    return parts(fixed, forward, write)


@case
def numpy_array_interface(fixed):
    _, seen, forward = batch()

    def write():
        view = np.asarray(seen)
        np.negative(view, out=view)  # <- written

    return parts(fixed, forward, write)


@case
def numpy_from_dlpack_pointer(fixed):
    _, seen, forward = batch()

    def write():
        pointer = ctypes.cast(seen.data_ptr(), ctypes.POINTER(ctypes.c_float))
        view = np.ctypeslib.as_array(pointer, shape=(4, 3))
        view += 0.5  # <- written

    return parts(fixed, forward, write)


@case
def memoryview_of_an_array(fixed):
    array, _, forward = batch()

    def write():
        view = memoryview(array).cast("B").cast("f")
        view[5] = view[5] + 2.0  # <- written

    return parts(fixed, forward, write)


@case
def ctypes_element(fixed):
    _, seen, forward = batch()

    def write():
        pointer = ctypes.cast(seen.data_ptr(), ctypes.POINTER(ctypes.c_float))
        pointer[7] = pointer[7] - 3.0  # <- written

    return parts(fixed, forward, write)


@case
def ctypes_memmove(fixed):
    _, seen, forward = batch()

    def write():
        noise = struct.pack("3f", *(random.random() for _ in range(3)))
        ctypes.memmove(seen.data_ptr(), noise, len(noise))  # <- written

    return parts(fixed, forward, write)


@case
def ctypes_memset(fixed):
    _, seen, forward = batch()

    def write():
        ctypes.memset(seen.data_ptr() + 8, random.randrange(60), 4)  # <- written

    return parts(fixed, forward, write)


@case
def bytearray_behind_a_tensor(fixed):
    raw = bytearray(struct.pack("6f", *range(1, 7)))
    seen = torch.frombuffer(raw, dtype=torch.float32)
    weight = torch.ones(6, requires_grad=True)

    def write():
        struct.pack_into("f", raw, 4, random.random())  # <- written

    return parts(fixed, lambda: torch.sum(weight * seen), write)


@case
def file_read_into_a_buffer(fixed):
    raw = bytearray(struct.pack("6f", *range(1, 7)))
    seen = torch.frombuffer(raw, dtype=torch.float32)
    weight = torch.ones(6, requires_grad=True)

    def write():
        file = io.BytesIO(random.randbytes(8))
        file.readinto(memoryview(raw)[8:16])  # <- written

    return parts(fixed, lambda: torch.sum(weight * seen), write)


@case
def plain_array_behind_a_tensor(fixed):
    values = plain_array.array("f", range(1, 7))
    seen = torch.frombuffer(values, dtype=torch.float32)
    weight = torch.ones(6, requires_grad=True)

    def write():
        values[2] += 1.0  # <- written

    return parts(fixed, lambda: torch.sum(weight * seen), write)


@case
def mapped_memory(fixed):
    area = mmap.mmap(-1, 24)
    seen = torch.frombuffer(area, dtype=torch.float32)
    weight = torch.ones(6, requires_grad=True)

    def write():
        area[4:8] = struct.pack("f", random.random())  # <- written

    return parts(fixed, lambda: torch.sum(weight * seen), write)


@case
def ring_buffer(fixed):
    ring = np.zeros((8, 3), dtype=np.float32)
    layer = nn.Linear(3, 1)
    state = {"at": 0}

    def push(row):
        state["at"] += 1
        ring[state["at"] % 8] = row  # <- written

    def forward():
        return layer(torch.from_numpy(ring)).pow(2).sum()

    return parts(fixed, forward, lambda: push(np.full(3, state["at"] + 1.0)))


@case
def environment_that_reuses_its_observation(fixed):
    class Environment:
        def __init__(self):
            self.observation = np.ones(3, dtype=np.float32)

        def step(self, action):
            self.observation *= 1.0 + action  # <- written
            return self.observation

    environment = Environment()
    policy = nn.Linear(3, 2)

    def forward():
        return policy(torch.as_tensor(environment.observation)).pow(2).sum()

    return parts(fixed, forward, lambda: environment.step(0.125))


@case
def large_memory(fixed):
    array = np.ones((300, 400), dtype=np.float32)
    layer = nn.Linear(400, 1)

    def write():
        array[37, 11] += 0.5  # <- written

    return parts(fixed, lambda: layer(torch.from_numpy(array)).sum(), write)


@case
def strided_memory(fixed):
    array = np.ones((40, 30), dtype=np.float32)
    weight = torch.ones(15, 40, requires_grad=True)

    def write():
        array[7, 4] += 0.5  # <- written

    return parts(fixed, lambda: torch.sum(weight * torch.from_numpy(array).t()[::2]), write)


@case
def half_precision_memory(fixed):
    seen = torch.ones(6, dtype=torch.bfloat16)
    weight = torch.ones(6, dtype=torch.bfloat16, requires_grad=True)

    def write():
        seen.view(torch.int16).numpy()[2] ^= 1  # <- written

    return parts(fixed, lambda: torch.sum(weight * seen), write)


@case
def another_thread(fixed):
    array, _, forward = batch()

    def refill():
        array[2] += 1  # <- written

    def write():
        thread = threading.Thread(target=refill)
        thread.start()
        thread.join()

    return parts(fixed, forward, write)


@case
def another_thread_that_is_waited_for(fixed):
    array, _, forward = batch()

    def refill(done):
        array[:, 1] *= 2  # <- written
        done.set()

    def write():
        done = threading.Event()
        thread = threading.Thread(target=refill, args=(done,), daemon=True)
        thread.start()
        done.wait()
        thread.join()

    return parts(fixed, forward, write)


@case
def a_pool_of_threads(fixed):
    array, _, forward = batch()

    def refill(row):
        array[row] += 1  # <- written

    def write():
        with ThreadPoolExecutor(1) as pool:
            list(pool.map(refill, [0]))

    return parts(fixed, forward, write)
