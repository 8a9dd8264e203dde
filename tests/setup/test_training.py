"""Which files of a repository train, by whose loop, and which only look like it."""

from __future__ import annotations

import subprocess

import pytest

from gradcheck_suite.setup.training import find_training

PLAIN = """\
import torch

def train(model, batches):
    optimizer = torch.optim.Adam(model.parameters())
    for batch in batches:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""
TRAINS = {
    "a loop in a function that main calls": (
        f"{PLAIN}\nif __name__ == '__main__':\n    train(None, [])\n",
        (7, None, True),
    ),
    "a loop in a library": (PLAIN, (7, None, False)),
    "a loop that the last line starts": (f"{PLAIN}\ntrain(None, [])\n", (7, None, True)),
    "accelerate": (
        (
            "import torch\nfrom accelerate import Accelerator\n"
            "accelerator = Accelerator()\n"
            "model = torch.nn.Linear(2, 1)\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "for batch in []:\n"
            "    accelerator.backward(model(batch).sum())\n"
            "    optimizer.step()\n"
        ),
        (7, "Accelerate", True),
    ),
    "lightning": (
        (
            "import torch\nimport lightning as L\n"
            "class M(L.LightningModule):\n    pass\n"
            "def main():\n    trainer = L.Trainer(max_epochs=1)\n    trainer.fit(M())\n"
            "main()\n"
        ),
        (7, "Lightning", True),
    ),
    "pytorch_lightning": (
        "from pytorch_lightning import Trainer\nTrainer().fit(None)\n",
        (2, "Lightning", True),
    ),
    "transformers": (
        "from transformers import Trainer\ntrainer = Trainer(model=None)\ntrainer.train()\n",
        (3, "transformers", True),
    ),
}


@pytest.mark.parametrize("kind", TRAINS)
def test_a_file_that_trains_is_found_at_its_line(kind, tmp_path):
    source, expected = TRAINS[kind]
    (tmp_path / "fit_model.py").write_text(source)
    (script,) = find_training(tmp_path).scripts
    assert (script.line, script.framework, script.is_script) == expected


@pytest.mark.parametrize(
    "source",
    [
        "model.train()\n",  # a mode, and no trainer
        "from sklearn import svm\nsvm.SVC().fit([], [])\n",
        "import torch\nscheduler = torch.optim.lr_scheduler.StepLR(None, 1)\nscheduler.step()\n",
        "import torch\nloss = torch.ones(1)\nloss.backward()\n",  # nothing steps
        "import torch\nenv.step(action)\nloss.backward(\n",  # no Python
        '"""loss.backward(); optimizer.step()"""\nimport torch\n',
        "from transformers import AutoModel\nAutoModel().train()\n",
    ],
)
def test_a_file_that_only_looks_like_it_is_not(source, tmp_path):
    (tmp_path / "train.py").write_text(source)
    assert find_training(tmp_path).scripts == ()


def test_scripts_come_first_and_those_called_train_before_others(tmp_path):
    script = TRAINS["a loop that the last line starts"][0]
    (tmp_path / "aaa.py").write_text(PLAIN)
    (tmp_path / "bbb.py").write_text(script)
    (tmp_path / "zzz_train.py").write_text(script)
    (tmp_path / "train_lib.py").write_text(PLAIN)
    found = [script.path for script in find_training(tmp_path).scripts]
    assert found == ["zzz_train.py", "bbb.py", "train_lib.py", "aaa.py"]


def test_tests_and_ignored_files_train_nothing(tmp_path):
    subprocess.run(["git", "init", str(tmp_path)], check=True, capture_output=True)
    (tmp_path / ".gitignore").write_text("old/\n")
    for path in ("old/train.py", "venv/train.py", "tests/test_train.py", "tests/data/loop.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        source = TRAINS["a loop that the last line starts"][0]
        (tmp_path / path).write_text(f"{source}\ndef test_it():\n    pass\n")
    found = find_training(tmp_path)
    assert found.scripts == ()
    assert (found.tests, found.tests_use_torch) == ("tests", True)


def test_a_script_with_the_name_of_a_test_is_none(tmp_path):
    (tmp_path / "test_on_image.py").write_text("import torch\nprint(torch.ones(1))\n")
    assert find_training(tmp_path).tests is None
    (tmp_path / "test_real.py").write_text("import torch\n\nclass TestIt:\n    pass\n")
    found = find_training(tmp_path)
    assert (found.tests, found.tests_use_torch) == (".", True)


def test_an_empty_folder_has_nothing(tmp_path):
    found = find_training(tmp_path)
    assert (found.scripts, found.tests, found.framework, found.unread) == ((), None, None, 0)
