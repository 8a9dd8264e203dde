"""Blocks on the line of their statement are blocks as any other."""

from __future__ import annotations


def test_an_import_in_a_block_of_one_line_is_known(lint):
    found = lint(
        """
        import torch

        if True: import torch.nn as nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(2, 2)]
        """
    )
    assert [finding.code for finding in found] == ["GCS404"]


def test_an_iterator_may_be_used_up_on_some_paths_alone(lint):
    source = """
        import torch

        def build(model: torch.nn.Module, verbose):
            params = (p for p in model.parameters() if p.requires_grad)
            {condition}print(sum(p.numel() for p in params))
            return torch.optim.Adam(params, lr=0.1)
        """
    assert [finding.code for finding in lint(source.format(condition=""))] == ["GCS307"]
    assert lint(source.format(condition="if verbose: ")) == ()


def test_a_loop_that_is_left_after_an_update_never_reads_it(lint):
    source = """
        import torch

        def fit(x):
            w = torch.ones(3, requires_grad=True)
            for _ in range(3):
                (w * x).sum().backward()
                if x.sum() > 0: w = w - 0.1 * w.grad{left}
        """
    assert [finding.code for finding in lint(source.format(left=""))] == ["GCS102"]
    assert lint(source.format(left="; break")) == ()
