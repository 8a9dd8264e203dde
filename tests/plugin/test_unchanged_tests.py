"""What tests compute, draw and raise is the same with the plugin and without it."""

from __future__ import annotations

import pytest

SOURCE = """
    import hashlib
    import random

    def digest(*values):
        text = repr([v.tolist() if isinstance(v, torch.Tensor) else v for v in values])
        return hashlib.sha256(text.encode()).hexdigest()

    def tell(name, *values):
        print(f"digest of {name}:", digest(*values))

    @pytest.fixture(autouse=True)
    def seeded():
        torch.manual_seed(0)
        random.seed(0)

    @pytest.mark.parametrize("kind", ["SGD", "Adam", "LBFGS"])
    @pytest.mark.parametrize("clear", [True, False])
    def test_training(kind, clear):
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4)
        )
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
        x = torch.randn(6, 3)

        def closure():
            if clear:
                optimizer.zero_grad()
            loss = model(x).pow(3).mean()
            loss.backward()
            return loss

        losses = [optimizer.step(closure) for _ in range(5)]
        state = [*losses, *model.state_dict().values(), *(p.grad for p in model.parameters())]
        tell(f"{kind} {clear}", *state, torch.get_rng_state(), random.getstate())

    @pytest.mark.parametrize("case", range(4))
    def test_raises(case):
        leaf = torch.ones(3, requires_grad=True)
        loss = leaf.exp().sum()
        loss.backward()
        mine = KeyError("mine")

        def raises(gradient):
            raise mine

        with pytest.raises(Exception) as caught:
            if case == 0:
                loss.backward()
            elif case == 1:
                leaf.mul_(2)
            elif case == 2:
                y = leaf.exp()
                y.mul_(2)
                y.sum().backward()
            else:
                y = leaf * 2
                y.register_hook(raises)
                y.sum().backward()
        assert case != 3 or caught.value is mine
        error = caught.value
        tell(f"case {case}", type(error).__name__, str(error), error.__cause__, error.__context__)
"""


@pytest.mark.parametrize(
    "flags",
    [("--gradcheck-suite-audit",), ("--gradcheck-suite-audit=note", "--gradcheck-suite-seed=3")],
)
@pytest.mark.slow
def test_bits_draws_and_exceptions(run_tests, flags):
    def digests(*arguments):
        lines = run_tests(SOURCE, "-s", *arguments).outlines
        told = [line.partition("digest of ")[2] for line in lines if "digest of " in line]
        assert len(told) == 10
        return told

    assert digests(*flags) == digests("-p", "no:gradcheck_suite")
