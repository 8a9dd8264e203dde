"""Writers that the cases call from another module."""

from __future__ import annotations

import functools


def centre(array):
    array -= array.mean()  # <- written
    return array


class Normaliser:
    def __init__(self, array):
        self.array = array

    def apply(self):
        self.array /= 3.0  # <- written


def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


def collate(rows, out):
    for index, row in enumerate(rows):
        out[index] = row  # <- written
    return out
