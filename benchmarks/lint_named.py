"""Whether gradcheck-lint finds the mistakes known in public repositories, and none of the traps.

The places were judged by reading them, and some by running them, before the rules were written:
mistakes that a reader would report, and correct code that looks like one to a tool that does not
follow the flow. The folder has the repositories of ``lint_precision.json`` as ``owner+name``:

    python -m benchmarks.lint_named FOLDER
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Scores, run_as_command
from gradcheck_lint.engine import lint_source
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gradcheck_suite.findings import Finding


@dataclass(frozen=True, slots=True)
class Place:
    """Lines of one file where a rule has to speak, or must not; no lines are the whole file."""

    code: str
    repository: str
    path: str
    first: int = 1
    last: int = 1_000_000

    def holds(self, finding: Finding) -> bool:
        """Tell whether a finding is of this rule and on these lines."""
        line = finding.location.line if finding.location is not None else 0
        return finding.code == self.code and self.first <= line <= self.last

    def __str__(self) -> str:
        """Return what a reader looks up."""
        return f"{self.code} {self.repository} {self.path}:{self.first}"


MISTAKES = (
    *(
        Place("GCS301", "pytorch/examples", f"distributed/tensor_parallelism/{name}.py", *lines)
        for name, lines in (
            ("tensor_parallel_example", (114, 125)),
            ("fsdp_tp_example", (165, 176)),
            ("sequence_parallel_example", (102, 110)),
        )
    ),
    Place(
        "GCS301",
        "facebookresearch/fairseq",
        "examples/emotion_conversion/emotion_models/duration_predictor.py",
        190,
        202,
    ),
    Place(
        "GCS301",
        "facebookresearch/fairseq",
        "examples/emotion_conversion/emotion_models/pitch_predictor.py",
        498,
        536,
    ),
    Place("GCS305", "pytorch/examples", "distributed/minGPT-ddp/mingpt/trainer.py", 107, 107),
    Place(
        "GCS109",
        "eriklindernoren/PyTorch-GAN",
        "implementations/softmax_gan/softmax_gan.py",
        153,
        160,
    ),
    *(
        Place("GCS106", "facebookresearch/fairseq", "fairseq/models/text_to_speech/" + name, n, n)
        for name, n in (
            ("tacotron2.py", 279),
            ("tacotron2.py", 289),
            ("tacotron2.py", 290),
            ("fastspeech2.py", 112),
        )
    ),
    Place("GCS106", "huggingface/pytorch-image-models", "timm/models/csatv2.py", 313, 314),
    Place("GCS106", "huggingface/pytorch-image-models", "timm/layers/ml_decoder.py", 142, 142),
    Place("GCS106", "OpenNMT/OpenNMT-py", "onmt/modules/moe.py", 63, 63),
    Place(
        "GCS106",
        "huggingface/diffusers",
        "src/diffusers/models/autoencoders/ltx2_diffusion_decoder.py",
        351,
        351,
    ),
    Place(
        "GCS106",
        "huggingface/diffusers",
        "src/diffusers/models/transformers/transformer_lumina2.py",
        523,
        524,
    ),
    Place("GCS503", "OpenNMT/OpenNMT-py", "onmt/modules/sparse_activations.py", 59, 59),
    Place("GCS502", "OpenNMT/OpenNMT-py", "onmt/modules/sru.py"),
    *(
        Place("GCS502", "jwyang/faster-rcnn.pytorch", f"lib/model/{name}.py")
        for name in (
            "roi_align/functions/roi_align",
            "roi_crop/functions/gridgen",
            "roi_pooling/functions/roi_pool",
        )
    ),
    Place(
        "GCS205",
        "jwyang/faster-rcnn.pytorch",
        "lib/model/roi_align/functions/roi_align.py",
        16,
        16,
    ),
    Place("GCS205", "OpenNMT/OpenNMT-py", "onmt/modules/sru.py", 434, 434),
    Place("GCS204", "pytorch/examples", "language_translation/main.py", 153, 180),
    Place("GCS204", "salesforce/awd-lstm-lm", "main.py", 156, 170),
    Place("GCS204", "salesforce/awd-lstm-lm", "finetune.py", 104, 120),
    Place("GCS204", "salesforce/awd-lstm-lm", "pointer.py", 59, 80),
    Place("GCS204", "quark0/darts", "rnn/train.py", 140, 156),
    *(
        Place("GCS204", "vwxyzjn/cleanrl", f"cleanrl_utils/evals/{name}_eval.py")
        for name in ("dqn", "c51", "ppo")
    ),
    Place("GCS902", "salesforce/awd-lstm-lm", "generate.py", 63, 63),
    Place("GCS902", "quark0/darts", "rnn/utils.py", 27, 27),
)
"""Mistakes that a reader has found, each once."""

_GANS = ("cluster_gan/clustergan", "stargan/stargan")
_WASSERSTEIN = ("wgan/wgan", "wgan_div/wgan_div", "wgan_gp/wgan_gp")
_AGENTS = (
    *("c51", "c51_atari", "dqn", "dqn_atari", "ddpg_continuous_action", "td3_continuous_action"),
    *("sac_atari", "sac_continuous_action", "rainbow_atari", "qdagger_dqn_atari_impalacnn"),
)

TRAPS = (
    *(
        Place("GCS301", "pytorch/examples", f"distributed/{name}.py")
        for name in ("rpc/rnn/main", "rpc/ddp_rpc/main", "rpc/pipeline/main")
    ),
    Place(
        "GCS301",
        "yunjey/pytorch-tutorial",
        "tutorials/03-advanced/generative_adversarial_network/main.py",
    ),
    *(
        Place("GCS301", "OpenNMT/OpenNMT-py", f"onmt/tests/{name}.py")
        for name in ("test_models", "test_embeddings", "test_copy_generator")
    ),
    *(
        Place(code, "eriklindernoren/PyTorch-GAN", f"implementations/{name}.py")
        for name in (*_GANS, *_WASSERSTEIN)
        for code in ("GCS301", "GCS302", "GCS309")
    ),
    *(
        Place(code, "vwxyzjn/cleanrl", f"cleanrl/{name}.py")
        for name in _AGENTS
        for code in ("GCS301", "GCS302", "GCS309")
    ),
    Place(
        "GCS302",
        "huggingface/diffusers",
        "examples/research_projects/sana/train_sana_sprint_diffusers.py",
    ),
    *(
        Place("GCS402", "huggingface/diffusers", f"examples/community/{name}.py")
        for name in ("dps_pipeline", "hd_painter")
    ),
    *(
        Place("GCS402", "huggingface/diffusers", f"src/diffusers/pipelines/deprecated/{name}.py")
        for name in (
            "stable_diffusion_diffedit/pipeline_stable_diffusion_diffedit",
            "stable_diffusion_variants/pipeline_stable_diffusion_pix2pix_zero",
        )
    ),
    Place(
        "GCS301",
        "huggingface/diffusers",
        "src/diffusers/pipelines/deprecated/stable_diffusion_variants/"
        "pipeline_stable_diffusion_pix2pix_zero.py",
    ),
    Place(
        "GCS201",
        "huggingface/accelerate",
        "examples/by_feature/deepspeed_with_config_support.py",
    ),
    Place("GCS201", "huggingface/diffusers", "examples/vqgan/train_vqgan.py"),
    Place("GCS201", "pytorch/examples", "fast_neural_style/neural_style/neural_style.py"),
    Place("GCS204", "huggingface/accelerate", "src/accelerate/optimizer.py"),
)
"""Correct code that other tools, or a quick look, take for one of these mistakes."""


def run(arguments: argparse.Namespace) -> Scores:
    """Lint every named file and count."""
    missed = [place for place in MISTAKES if not _found(place, arguments.folder)]
    hit = [place for place in TRAPS if _found(place, arguments.folder)]
    for place in missed:
        print(f"missed: {place}", file=sys.stderr)
    for place in hit:
        print(f"trap: {place}", file=sys.stderr)
    return scores(len(missed), len(hit))


def scores(missed: int, hit: int) -> Scores:
    """Return the two counts."""
    return Scores(
        title="Named mistakes in public repositories that are found, and traps that are hit",
        command="python -m benchmarks.lint_named FOLDER",
        columns=("", "found", "of"),
        rows=(
            ("mistakes", len(MISTAKES) - missed, len(MISTAKES)),
            ("traps", hit, len(TRAPS)),
        ),
        goal="all mistakes, no trap",
        met=not missed and not hit,
    )


def _found(place: Place, folder: Path) -> bool:
    return any(place.holds(finding) for finding in findings(place, folder))


def findings(place: Place, folder: Path) -> Sequence[Finding]:
    """Return what the linter says above a note in the file of a place.

    Raises:
        FileNotFoundError: the repository, or this file of it, is not in the folder.
    """
    path = folder / place.repository.replace("/", "+") / place.path
    found = lint_source(path.read_bytes(), str(path))
    return [finding for finding in found if finding.severity is not Severity.NOTE]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER")


if __name__ == "__main__":
    sys.exit(run_as_command(run, _options))
