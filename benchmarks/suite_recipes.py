"""The libraries whose test suites ``plugin_suites`` audits, and what was judged of each finding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a reader of the test and of the library's code says of findings.

    Attributes:
        code: of the findings.
        where: part of the place, "path:line", that they name.
        right: whether the finding is true.
        verdict: why, in a sentence.
    """

    code: str
    where: str
    right: bool
    verdict: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to run the tests of one library.

    Attributes:
        name: of the library, and of the folder that its clone lies in.
        repository: where its source is.
        commit: the revision that was judged.
        arguments: what pytest is told: which tests, and which are left out.
        path: the folder inside the clone that the library is imported from.
        environment: variables that the tests need.
        note: why tests are left out.
        judgements: of every finding.
    """

    name: str
    repository: str
    commit: str
    arguments: tuple[str, ...]
    path: str = "."
    environment: tuple[tuple[str, str], ...] = ()
    note: str = ""
    judgements: tuple[Judgement, ...] = ()


RECIPES = (
    Recipe(
        "einops",
        "https://github.com/arogozhnikov/einops",
        "ccb89f27599f26d7140a1bd2703305309fe3a3bd",
        ("einops/tests",),
        environment=(("EINOPS_TEST_BACKENDS", "numpy,torch"),),
    ),
    Recipe(
        "entmax",
        "https://github.com/deep-spin/entmax",
        "c2bec6d5e7d649cba7766c2172d89123ec2a6d70",
        ("entmax",),
        judgements=(
            Judgement(
                "GCS205",
                "entmax/root_finding.py:39",
                True,
                (
                    "right: `forward` keeps its input `alpha` as `ctx.alpha`, and `backward` reads "
                    "it there, so that a write in between would go unnoticed; the same file saves "
                    "its other tensor by `save_for_backward`"
                ),
            ),
        ),
    ),
    Recipe(
        "gpytorch",
        "https://github.com/cornellius-gp/gpytorch",
        "7c4ec80f0f05cf530348a8a8972d67a11dd26ed2",
        ("test/functions", "test/kernels", "test/likelihoods", "test/mlls"),
        note="Four of the 15 folders of tests.",
    ),
    Recipe(
        "torchmetrics",
        "https://github.com/Lightning-AI/torchmetrics",
        "dab033394560ab3ce05e3d14c13f32e4cde6b351",
        (
            *("--no-cov", "--color=no", "tests/unittests/pairwise"),
            *("tests/unittests/bases/test_metric.py", "tests/unittests/bases/test_aggregation.py"),
            *(
                f"tests/unittests/regression/test_{name}.py"
                for name in ("cosine_similarity", "kl_divergence", "pearson", "r2", "spearman")
            ),
        ),
        path="src",
        note="Eight of its files: those of pairwise distances, five of regression, two of bases.",
    ),
    Recipe(
        "botorch",
        "https://github.com/pytorch/botorch",
        "e390e135c5327f832275d69ac485d7844e68e234",
        (
            *("test/posteriors", "test/models/kernels", "test/models/likelihoods"),
            *(
                f"test/models/test_{name}.py"
                for name in ("gpytorch", "model", "deterministic", "ensemble")
            ),
            *("test/optim/closures", "test/optim/utils"),
            *("test/acquisition/test_monte_carlo.py", "test/acquisition/test_analytic.py"),
        ),
        note="Those of its tests that fit no model for minutes.",
    ),
    Recipe(
        "pytorch-metric-learning",
        "https://github.com/KevinMusgrave/pytorch-metric-learning",
        "216a792c22b0154d3d3bf008a7317edc7d677e71",
        ("--ignore=tests/losses/test_cross_batch_memory.py", "tests/losses"),
        path="src",
        environment=(("TEST_DEVICE", "cpu"),),
        note="Its losses, but for one file whose two tests take minutes.",
    ),
    Recipe(
        "linear_operator",
        "https://github.com/cornellius-gp/linear_operator",
        "386cff780e1fc17317d3c1ce19604b5637736ca5",
        ("test",),
    ),
    Recipe(
        "higher",
        "https://github.com/facebookresearch/higher",
        "15a247ac06cac0d22601322677daff0dcfff062e",
        ("tests",),
        note=(
            "Its tests draw without a seed: `testDiffOptCallback` and `testGradientCorrectness` of "
            "shared weights now and then fail bare as well."
        ),
        judgements=(
            Judgement(
                "GCS403",
                "tests/test_optim.py:319",
                True,
                (
                    "right: `_PartiallyUsed` owns `b` and its `forward` leaves it out, which is "
                    "what its tests are about"
                ),
            ),
        ),
    ),
    Recipe(
        "pytorch_optimizer",
        "https://github.com/kozistr/pytorch_optimizer",
        "7a076d2f8f09735e82f9ec1d2d389ec2526bbdbb",
        ("-o", "addopts=", "tests"),
        judgements=(
            Judgement(
                "GCS307",
                "pytorch_optimizer/base/optimizer.py:27",
                True,
                (
                    "right: `build_optimizer_parameter` goes through `model.parameters()`, an "
                    "iterator, twice, so that the second group of Muon and AdaGO is empty; for "
                    "SpectralSphere the biases are left out on purpose"
                ),
            ),
            Judgement(
                "GCS303",
                "tests/test_optimizers.py:228",
                True,
                (
                    "right: the test steps a second time on the gradients that the step before "
                    "has used, on purpose"
                ),
            ),
        ),
    ),
)
