"""The engine copies the stack of saved-tensors hooks for every node: ours leave it meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import gradcheck_suite as gs
from gradcheck_suite._torch_compat import top_saved_tensors_hooks


def stack_seen_in_backward(**options):
    """Return the innermost hooks before, during and after a backward."""
    during = []
    weight = torch.randn(3, requires_grad=True)
    hidden = weight.exp()
    hidden.register_hook(lambda _: during.append(top_saved_tensors_hooks()))
    before = top_saved_tensors_hooks()
    hidden.sum().backward(**options)
    (seen,) = during
    return before, seen, top_saved_tensors_hooks()


def first_of(hooks):
    return None if hooks is None else hooks[0]


@pytest.mark.parametrize("watching", [gs.audit, gs.record, lambda: gs.record(backward=True)])
class TestTheStack:
    def test_is_empty_while_backward_runs(self, watching):
        with watching():
            before, during, after = stack_seen_in_backward()
        assert before is not None
        assert during is None
        assert first_of(after) is first_of(before)
        assert top_saved_tensors_hooks() is None

    @pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True:UserWarning")
    def test_is_as_it_was_where_backward_makes_a_graph(self, watching):
        with watching():
            before, during, after = stack_seen_in_backward(create_graph=True)
        assert before is not None
        assert first_of(during) is first_of(after) is first_of(before)

    def test_keeps_the_programs_own_hooks_where_they_are(self, watching):
        def pack(tensor):
            return tensor

        with watching():
            with saved_tensors_hooks(pack, pack):
                before, during, after = stack_seen_in_backward()
            assert first_of(before) is first_of(during) is first_of(after) is pack
            assert top_saved_tensors_hooks() is not None
        assert top_saved_tensors_hooks() is None

    def test_is_put_back_after_an_error_in_backward(self, watching):
        def fail(_):
            raise KeyboardInterrupt

        with watching():
            before = top_saved_tensors_hooks()
            hidden = torch.ones(2, requires_grad=True).exp()
            hidden.register_hook(fail)
            with pytest.raises(KeyboardInterrupt):
                hidden.sum().backward()
            assert first_of(top_saved_tensors_hooks()) is first_of(before)
        assert top_saved_tensors_hooks() is None

    def test_stays_empty_if_backward_ends_the_watch(self, watching):
        watch = watching()
        hidden = torch.ones(2, requires_grad=True).exp()
        with watch:
            hidden = torch.ones(2, requires_grad=True).exp()
            hidden.register_hook(lambda _: watch.__exit__(None, None, None))
            hidden.sum().backward()
            assert top_saved_tensors_hooks() is None
        assert top_saved_tensors_hooks() is None


def test_an_overwritten_tensor_is_still_refused_in_torchs_words():
    def run():
        hidden = torch.ones(2, requires_grad=True).exp()
        hidden.mul_(2)
        hidden.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace") as bare:
        run()
    with gs.audit() as session, pytest.raises(RuntimeError) as audited:
        run()
    assert str(audited.value) == str(bare.value)
    assert [finding.code for finding in session.report.findings] == ["GCS108"]


def test_what_checkpointing_computes_again_is_checked_by_torch():
    weight = torch.ones(2, requires_grad=True)

    def block(x):
        hidden = (x * weight).exp()
        hidden.mul_(2)
        return hidden

    def run():
        x = torch.ones(2, requires_grad=True)
        checkpoint(block, x, use_reentrant=True).sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace") as bare:
        run()
    with gs.audit(), pytest.raises(RuntimeError, match="modified by an inplace") as audited:
        run()
    assert str(audited.value) == str(bare.value)


def test_a_second_step_is_watched_as_the_first():
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with gs.audit(checksum_first_steps=0, checksum_every=1) as session:
        for step in range(4):
            optimizer.zero_grad()
            hidden = weight.exp()
            loss = hidden.sum()
            if step == 2:
                hidden.data.zero_()
            loss.backward()
            optimizer.step()
    assert "GCS104" in {finding.code for finding in session.report.findings}
