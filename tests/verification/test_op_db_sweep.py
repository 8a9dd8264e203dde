"""Every differentiable operator of torch's own test bank: no false alarm."""

from __future__ import annotations

import pytest
import torch

from gradcheck_suite.verification import check_gradients

# What torch's own gradient tests skip or expect to fail, and operators that return statistics
# which they have detached from the graph on purpose.
KNOWN = {
    "_batch_norm_with_update",
    "_native_batch_norm_legit",
    "__rpow__",
    "as_strided_scatter",
    "linalg.lstsq",
    "native_batch_norm",
    "native_group_norm",
    "native_layer_norm",
    "nn.functional.max_unpool1d",
    "nn.functional.max_unpool2d",
    "nn.functional.max_unpool3d",
    "normal",
}


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_no_operator_of_torch_fails():
    pytest.importorskip("expecttest")
    operators = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
    failed, passed = {}, 0
    for operator in operators:
        if not operator.supports_autograd or operator.name in KNOWN:
            continue
        if torch.float64 not in operator.supported_backward_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        samples = operator.sample_inputs("cpu", torch.float64, requires_grad=True)
        for sample, _ in zip(samples, range(3), strict=False):
            report = check_sample(operator, sample)
            if report is None:
                continue
            passed += sum(verdict.status == "pass" for verdict in report.verdicts)
            if report.findings:
                failed[operator.name] = [finding.message for finding in report.findings]
    assert failed == {}
    assert passed > 1500


def check_sample(operator, sample):
    def call(given, args, kwargs):
        output = operator.gradcheck_wrapper(operator.get_op(), given, *args, **kwargs)
        process = sample.output_process_fn_grad
        return output if process is None else process(output)

    from gradcheck_suite.errors import UsageError

    try:
        return check_gradients(call, (sample.input, sample.args, sample.kwargs))
    except UsageError:
        return None  # no floating-point input that requires grad, or NaN in it on purpose
    except RuntimeError as error:
        if "out of bounds for storage" in str(error):
            return None  # as_strided on a view of a larger storage
        raise
