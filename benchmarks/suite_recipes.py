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
        "pytorch-metric-learning",
        "https://github.com/KevinMusgrave/pytorch-metric-learning",
        "216a792c22b0154d3d3bf008a7317edc7d677e71",
        tuple(
            f"tests/losses/test_{name}_loss.py"
            for name in (
                "arcface",
                "circle",
                "contrastive",
                "ntxent",
                "proxy_nca",
                "triplet_margin",
            )
        ),
        path="src",
        environment=(("TEST_DEVICE", "cpu"),),
        note="Six of the 35 files of losses.",
    ),
)
