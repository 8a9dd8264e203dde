from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import gradcheck_lint
import gradcheck_suite
import pytest_gradcheck_suite
from gradcheck_suite._runtime.frames import Owner, owner_of_file

OURS = Path(gradcheck_suite.__file__).parent


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        (str(OURS / "cli.py"), Owner.US),
        (str(OURS / "_examples" / "digits" / "train.py"), Owner.USER),
        (gradcheck_lint.__file__, Owner.US),
        (pytest_gradcheck_suite.__file__, Owner.US),
        (json.__file__, Owner.PYTHON),
        (re.__file__, Owner.PYTHON),
        (pytest.__file__, Owner.PACKAGE),
        ("<frozen importlib._bootstrap>", Owner.PYTHON),
        ("<string>", Owner.PYTHON),
        ("<ipython-input-3>", Owner.USER),
        (__file__, Owner.USER),
        ("train.py", Owner.USER),
    ],
)
def test_a_file_belongs_to_one(name, owner):
    assert owner_of_file(name) is owner


def test_a_folder_with_a_similar_name_is_not_ours():
    assert owner_of_file(f"{OURS}_tools/train.py") is Owner.USER
