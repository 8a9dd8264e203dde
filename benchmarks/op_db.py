"""Check the gradients of every operator in torch's own test bank, beside torch's fast mode.

No operator gets options of its own. Left out is what torch's gradient tests skip or expect to fail
for the same operator, type and test; ``gradcheck_wrapper`` and ``output_process_fn_grad`` are
applied as there (they make an input symmetric, say, or drop an output that has no gradient).
Integer operands are handed on as they are. A sample whose input has no finite value is refused, and
counted so.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.harness import Benchmark, Row, as_markdown, machine
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification import check_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TEST = {1: ("TestBwdGradients", "test_fn_grad"), 2: ("TestBwdGradients", "test_fn_gradgrad")}
_MOST_INCONCLUSIVE = 0.01
# Operators from one line of progress to the next.
_TELLS = 25


@dataclass(slots=True)
class Tally:
    """What came out of all samples; ``failed`` holds a message for each operator that failed."""

    samples: int = 0
    operators: int = 0
    refused: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    inconclusive: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    torch_seconds: float = 0.0
    torch_failed: Counter[str] = field(default_factory=Counter)

    @property
    def inconclusive_share(self) -> float:
        """Inconclusive verdicts among those that could have been passes."""
        decided = sum(self.verdicts[status] for status in ("pass", "fail", "inconclusive"))
        return self.verdicts["inconclusive"] / decided if decided else 0.0

    def told(self) -> str:
        """Tell the counts so far in one line."""
        counts = ", ".join(f"{count} {status}" for status, count in self.verdicts.most_common())
        return f"{self.samples} samples, {counts}, {self.refused} refused, {self.seconds:.0f} s"


def operators(dtype: torch.dtype, order: int) -> list[Any]:
    """Return the operators with a gradient in this type that torch's own test does not skip."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        operator
        for operator in op_db
        if operator.supports_autograd
        and (order == 1 or operator.supports_gradgrad)
        and dtype in operator.supported_backward_dtypes("cpu")
        and not _skipped(operator, dtype, order)
    ]


def samples(operator: Any, dtype: torch.dtype) -> Iterator[tuple[Callable[..., object], Any]]:
    """Yield each sample input of an operator with the function to check on it."""
    torch.manual_seed(0)
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=True):

        def call(given: Any, args: Any, kwargs: Any, sample: Any = sample) -> object:
            output = operator.gradcheck_wrapper(operator.get_op(), given, *args, **kwargs)
            process = sample.output_process_fn_grad
            return output if process is None else process(output)

        yield call, sample


def tally(
    chosen: list[Any],
    *,
    dtype: torch.dtype,
    options: dict[str, Any],
    most: int | None = None,
    beside_torch: bool = True,
    seed: int = 0,
) -> Tally:
    """Check samples of operators and count what comes out.

    Args:
        chosen: the operators.
        dtype: of the samples.
        options: for ``check_gradients``, the same for every operator.
        most: how many samples of each operator, drawn at random; None for all.
        beside_torch: whether torch's fast mode checks the same samples.
        seed: for the draw of samples.
    """
    total = Tally()
    draw = random.Random(seed)
    for count, operator in enumerate(chosen, start=1):
        if count % _TELLS == 0:
            print(f"{count}/{len(chosen)}: {total.told()}", file=sys.stderr, flush=True)
        given = list(samples(operator, dtype))
        if most is not None and len(given) > most:
            given = draw.sample(given, most)
        total.operators += bool(given)
        for call, sample in given:
            _check(operator, call, sample, total, options)
            if beside_torch:
                _check_by_torch(operator, call, sample, total, second=options.get("order") == 2)
    return total


def _check(
    operator: Any,
    call: Callable[..., object],
    sample: Any,
    total: Tally,
    options: dict[str, Any],
) -> None:
    total.samples += 1
    start = time.process_time()
    name = f"{operator.name} {operator.variant_test_name}".strip()
    try:
        report = check_gradients(call, (sample.input, sample.args, sample.kwargs), **options)
    except UsageError:
        total.refused += 1
        return
    finally:
        total.seconds += time.process_time() - start
    total.verdicts.update(verdict.status for verdict in report.verdicts)
    wrong = [verdict for verdict in report.verdicts if verdict.status == "fail"]
    if wrong or not report.ok:
        print(f"failed: {name}", file=sys.stderr, flush=True)
        total.failed[name] = report.findings[0].message if report.findings else str(wrong[0])
    total.inconclusive[name] += sum(v.status == "inconclusive" for v in report.verdicts)


def _check_by_torch(
    operator: Any, call: Callable[..., object], sample: Any, total: Tally, *, second: bool
) -> None:
    tree = (sample.input, sample.args, sample.kwargs)
    leaves, spec = pytree.tree_flatten(tree)
    places = [
        index
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]

    def flat(*tensors: torch.Tensor) -> object:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return call(*pytree.tree_unflatten(filled, spec))

    check = torch.autograd.gradgradcheck if second else torch.autograd.gradcheck
    start = time.process_time()
    try:
        check(
            flat,
            tuple(leaves[place] for place in places),
            nondet_tol=operator.gradcheck_nondet_tol,
            fast_mode=True,
        )
    except Exception:  # noqa: BLE001 - any kind of failure is one
        total.torch_failed[operator.name] += 1
    total.torch_seconds += time.process_time() - start


def _skipped(operator: Any, dtype: torch.dtype, order: int) -> bool:
    suite, test = _TEST[order]
    return any(
        getattr(decorator, "cls_name", None) == suite
        and decorator.test_name in {None, test}
        and decorator.is_active(suite, test, "cpu", dtype, {})
        for decorator in operator.decorators
    )


def run(arguments: argparse.Namespace) -> tuple[Benchmark, Tally]:
    """Check the operators that the arguments choose."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dtype = getattr(torch, arguments.dtype)
    options: dict[str, Any] = {"order": arguments.order, "seed": arguments.seed}
    if not arguments.variations:
        options["variations"] = ()
    chosen = operators(dtype, arguments.order)
    if arguments.operators:
        chosen = [operator for operator in chosen if operator.name in arguments.operators]
    total = tally(
        chosen,
        dtype=dtype,
        options=options,
        most=arguments.sample,
        beside_torch=not arguments.alone,
        seed=arguments.seed,
    )
    ratio = total.seconds / total.torch_seconds if total.torch_seconds else 0.0
    per_sample = 1e3 / max(total.samples, 1)
    rows = (
        Row("gradcheck, fast mode", total.torch_seconds * per_sample, 1.0, 1.0, 1.0),
        Row("check_gradients", total.seconds * per_sample, ratio, ratio, ratio),
    )
    counts = ", ".join(f"{count} {status}" for status, count in total.verdicts.most_common())
    benchmark = Benchmark(
        title=f"op_db, {arguments.dtype}, order {arguments.order}",
        command=f"python -m benchmarks.op_db {' '.join(sys.argv[1:])}".strip(),
        unit="sample (CPU)",
        rows=rows,
        goal=(
            f"no false failure, inconclusive below 1 % in float64: {total.operators} operators, "
            f"{total.samples} samples, {counts}, {total.refused} refused "
            f"({100 * total.inconclusive_share:.2f} % inconclusive); {len(total.failed)} operators "
            f"with a false failure; {total.seconds:.0f} s, torch {total.torch_seconds:.0f} s with "
            f"{sum(total.torch_failed.values())} samples failed"
        ),
        met=not total.failed
        and (arguments.dtype != "float64" or total.inconclusive_share < _MOST_INCONCLUSIVE),
    )
    return benchmark, total


def main() -> int:
    """Run from the command line; return 1 if a right gradient is called wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--order", type=int, choices=(1, 2), default=1)
    parser.add_argument("--variations", action="store_true", help="vary the inputs as well")
    parser.add_argument("--sample", type=int, metavar="N", help="samples of each operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="without torch's fast mode")
    parser.add_argument("--operators", nargs="+", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    benchmark, total = run(arguments)
    if arguments.json:
        json.dump({"machine": machine(), **asdict(benchmark)}, sys.stdout, indent=2)
        print()
    else:
        print(as_markdown(benchmark))
        for name, message in total.failed.items():
            print(f"\nfailed: {name}: {message}")
        for name, count in total.inconclusive.most_common(20):
            if count:
                print(f"inconclusive: {name}: {count}")
    return 0 if benchmark.met else 1


if __name__ == "__main__":
    sys.exit(main())
