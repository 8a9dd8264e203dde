from __future__ import annotations

import time

from gradcheck_lint.engine import lint_source

_MODULE = """
class M{n}(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.ones(1))
        self.g += {n}.0
"""


def test_many_classes_that_call_each_others_makers_take_no_time():
    source = "import torch\nfrom torch import nn\n"
    source += "".join(_MODULE.format(n=n) for n in range(30))
    start = time.process_time()
    findings = lint_source(source.encode(), "modules.py")
    assert time.process_time() - start < 10
    assert [finding.code for finding in findings] == ["GCS101"] * 30


def test_two_functions_that_only_call_each_other_may_be_called_from_anywhere():
    source = """
import torch

def first(model, n):
    w = torch.nn.Parameter(torch.ones(1))
    w += 1
    return second(model, n)

def second(model, n):
    return first(model, n - 1)
"""
    assert [finding.code for finding in lint_source(source.encode(), "x.py")] == ["GCS101"]


def test_a_function_whose_callers_record_nothing_may_write_to_a_leaf():
    source = """
import torch

def set_up(n):
    w = torch.nn.Parameter(torch.ones(1))
    w += 1
    return set_up(n - 1) if n else w

def outer():
    return set_up(3)

def main():
    with torch.no_grad():
        outer()
"""
    assert lint_source(source.encode(), "x.py") == ()


def test_another_class_that_calls_the_maker_of_its_base_says_nothing_about_ours():
    source = """
import torch
from torch import nn
from .config import register

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.weight += 1

class Model(nn.Module):
    @register
    def __init__(self):
        super().__init__()
"""
    assert [finding.code for finding in lint_source(source.encode(), "x.py")] == ["GCS101"]
