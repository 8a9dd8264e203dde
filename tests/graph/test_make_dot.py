from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph import make_dot


@pytest.fixture
def made():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    return model(torch.ones(4, 3)).mean(), dict(model.named_parameters())


def test_names_and_ops(made):
    loss, params = made
    source = make_dot(loss, params=params).source

    for word in ("0.weight", "0.bias", "Mean", "Relu", "Addmm"):
        assert f'label="{word}' in source
    assert "unnamed leaf" in make_dot(loss).source


def test_attributes_and_saved_tensors(made):
    loss, params = made
    dot = make_dot(loss, params, True, True, 4)

    assert "alpha: 1" in dot.source
    assert "self_sym_sizes" not in make_dot(loss, params).source
    assert "result: saved (4, 2) f32" in dot.source
    assert "..." in dot.source


@pytest.mark.parametrize("kind", ["svg", "html", "dot", "gv", "json", "txt"])
def test_render_needs_no_graphviz(made, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    path = make_dot(made[0]).render("net", directory=tmp_path, format=kind)

    assert path == str(tmp_path / f"net.{kind}")
    assert (tmp_path / f"net.{kind}").stat().st_size > 100


def test_defaults(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    dot = make_dot(made[0])

    assert dot.render() == "autograd.svg"
    dot.view("seen")
    assert opened == [(tmp_path / "seen.svg").resolve().as_uri()]
    assert dot.save() == "autograd.gv"
    assert dot.save("other") == "other.gv"
    assert str(dot) == (tmp_path / "other.gv").read_text(encoding="utf-8")
    assert dot._repr_svg_().startswith("<?xml")


def test_a_deep_chain_does_not_recurse():
    y = torch.ones(1, requires_grad=True)
    for _ in range(3_000):
        y = y.sin()
    assert make_dot(y).source.count("->") == 3_000


@pytest.mark.usefixtures("fonts")
def test_png(made, tmp_path):
    path = make_dot(made[0]).render("net", directory=tmp_path, format="png")
    assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_png_without_resvg_and_graphviz(made, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    words = r"pip install 'gradcheck-suite\[png\]', or use format='svg'"
    with pytest.raises(gs.UsageError, match=words):
        make_dot(made[0]).render("net", directory=tmp_path, format="png")
    with pytest.raises(gs.UsageError, match="install it, or use format='svg'"):
        make_dot(made[0]).render("net", directory=tmp_path, format="pdf")


def test_png_with_graphviz(made, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    program = tmp_path / "dot"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = -Tpng ]; then cat > "$3"; else echo no >&2; exit 1; fi'
    )
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(program))
    dot = make_dot(made[0])

    path = dot.render("net", directory=tmp_path, format="png")
    assert (tmp_path / "net.png").read_text(encoding="utf-8") == dot.source
    assert path.endswith("net.png")
    with pytest.raises(gs.UsageError, match=r"dot could not write .*: no"):
        dot.render("net", directory=tmp_path, format="pdf")


def test_bytes_for_a_notebook(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dot = make_dot(made[0])

    assert dot.pipe().decode() == dot._repr_svg_()
    assert dot.pipe("dot").decode() == dot.source
    dot.format = "json"
    assert dot.pipe().startswith(b"{")
    with pytest.raises(gs.UsageError, match=r"got the suffix '\.bmp'"):
        dot.pipe("bmp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(1),), "has no graph"),
        (
            (torch.ones(1, requires_grad=True), [1]),
            "expected a dict of names and tensors, got list",
        ),
        ((torch.ones(1, requires_grad=True), {"a": 1}), "got dict"),
        ((torch.ones(1, requires_grad=True), None, False, False, 2), "at least 3, got 2"),
        ((nn.Linear(1, 1),), "got the module Linear"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(gs.UsageError, match=message):
        make_dot(*arguments)


def test_unknown_format(made, tmp_path):
    with pytest.raises(gs.UsageError, match=r"got the suffix '\.bmp'"):
        make_dot(made[0]).render("net", directory=tmp_path, format="bmp")
    with pytest.raises(gs.UsageError, match="does not exist"):
        make_dot(made[0]).render("net", directory=tmp_path / "none", format="svg")
