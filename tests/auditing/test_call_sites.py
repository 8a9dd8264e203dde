"""Frames, variables and lines of the user's code."""

from __future__ import annotations

import sys
import weakref

import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite._runtime.frames import Owner
from gradcheck_suite.auditing import call_sites
from gradcheck_suite.auditing.call_sites import call_site, location_of, variables_of


class Thing:
    pass


def test_torch_is_none_of_the_users_code_wherever_it_lies(monkeypatch):
    monkeypatch.setattr(call_sites, "owner_of_file", lambda _: Owner.USER)
    kinds = call_sites._Kinds()
    assert kinds[torch.optim.__file__] != kinds[__file__] == 0


def test_the_variables_of_a_frame_are_read_and_let_go():
    def function():
        thing = Thing()
        alive = weakref.ref(thing)
        assert variables_of(sys._getframe())["thing"] is thing
        del thing
        return alive()

    assert function() is None


def test_what_a_program_keeps_of_locals_is_left_alone():
    def function():
        first = 1
        kept = locals()
        variables_of(sys._getframe())
        return first, kept

    first, kept = function()
    assert kept["first"] == first


def test_module_globals_are_not_emptied():
    namespace = {"variables_of": variables_of, "__name__": "somewhere"}
    exec(
        compile(
            "import sys\nx = 1\nseen = variables_of(sys._getframe())\n", "somewhere.py", "exec"
        ),
        namespace,
    )
    assert namespace["x"] == 1
    assert namespace["seen"]["x"] == 1


def test_a_call_site_is_the_users_innermost_line():
    seen = []

    class Layer(nn.Module):
        def forward(self, x):
            seen.append(call_site())
            return x

    nn.Sequential(nn.Identity(), Layer())(torch.zeros(1))
    place = location_of(seen[0])
    assert place.path == __file__
    assert place.function.endswith("Layer.forward")


def test_the_line_of_a_library_stands_in_where_nothing_is_the_users():
    namespace: dict = {}
    library = torch.__path__[0].removesuffix("/torch") + "/some_library/train.py"
    exec(
        compile("def run(f):\n    return f()\n", library, "exec"),
        namespace,
    )
    frame_holder = []
    namespace["run"](lambda: frame_holder.append(sys._getframe(1)))
    site = call_site(frame_holder[0])
    # Above the library lies this test, which is the user's.
    assert location_of(site).path == __file__
    assert location_of(None) is None


def saved_at(forward):
    """Return where an audit says that ``forward`` has saved a tensor for its backward."""
    session = gs.audit()
    pack, unpack = session._recorder.hooks
    sites = []

    def use(holder):
        sites.append(location_of(holder.site))
        return unpack(holder)

    with torch.autograd.graph.saved_tensors_hooks(pack, use):
        forward().backward(torch.ones(1, 2))
    return sites[0]


def test_a_tensor_is_saved_on_the_line_that_calls_the_modules():
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))

    def forward():
        return net(torch.ones(1, 2))

    site = saved_at(forward)
    assert site.function.endswith("forward")
    assert site.line == forward.__code__.co_firstlineno + 1


def test_what_runs_modules_in_the_place_of_torchs_own_is_the_programs(monkeypatch):
    def run(module, *args):
        return module.forward(*args)

    monkeypatch.setattr(nn.Module, "_call_impl", run)
    net = nn.Sequential(nn.Linear(2, 2))
    assert saved_at(lambda: net(torch.ones(1, 2))).function.endswith("run")


def test_modules_may_be_run_by_what_is_no_function_of_pythons(monkeypatch):
    class Runner:
        def __get__(self, module, owner):
            return self if module is None else module.forward

    monkeypatch.setattr(nn.Module, "_call_impl", Runner())
    net = nn.Sequential(nn.Linear(2, 2))
    site = saved_at(lambda: net(torch.ones(1, 2)))
    assert site.path == __file__
