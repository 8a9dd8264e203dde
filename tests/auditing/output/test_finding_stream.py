"""``stream=``: each finding in a file the moment it is known, whatever becomes of the process."""

from __future__ import annotations

import errno
import json
import os
import signal
import textwrap
from importlib.resources import files

import jsonschema
import pytest
import torch
from referencing import Registry, Resource
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.output import finding_stream as streaming
from gradcheck_suite.errors import UsageError
from tests import warm_python


@pytest.fixture(scope="module")
def validator():
    folder = files("gradcheck_suite.reporting").joinpath("schemas")
    report, stream = (
        json.loads(folder.joinpath(f"{name}-1.schema.json").read_text(encoding="utf-8"))
        for name in ("report", "stream")
    )
    jsonschema.Draft202012Validator.check_schema(stream)
    registry = Registry().with_resource(report["$id"], Resource.from_contents(report))
    return jsonschema.Draft202012Validator(stream, registry=registry)


@pytest.fixture
def lines_of(validator):
    def read(path):
        lines = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
        for line in lines:
            validator.validate(line)
        return lines

    return read


def codes(lines):
    return [line["finding"]["code"] for line in lines if line["type"] == "finding"]


class Loop:
    """A loop without zero_grad, one step at a time."""

    def __init__(self):
        self.net = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self):
        self.net(torch.randn(3, 2)).sum().backward()
        self.optimizer.step()


def test_a_finding_is_in_the_file_while_the_loop_runs(tmp_path, lines_of):
    path, loop = tmp_path / "run.jsonl", Loop()
    with gs.audit(stream=path) as session:
        assert [line["type"] for line in lines_of(path)] == ["start"]
        loop.step()
        loop.step()
        assert codes(lines_of(path)) == ["GCS301"]
    lines = lines_of(path)
    assert [line["type"] for line in lines] == ["start", "finding", "end"]
    assert lines[0]["tool"] == session.report.tool
    assert lines[-1]["summary"]["steps"] == 2
    assert {line["process"] for line in lines} == {os.getpid()}


def test_the_last_word_on_a_finding_is_the_reports(tmp_path, lines_of):
    path, loop = tmp_path / "run.jsonl", Loop()
    with gs.audit(stream=str(path)) as session:
        for _ in range(100):
            loop.step()
    found = [line for line in lines_of(path) if line["type"] == "finding"]
    assert {line["id"] for line in found} == {1}
    # Again at each doubling of the steps, and at the end.
    assert 3 <= len(found) <= 9
    assert found[-1]["finding"]["evidence"]["count"] == 99
    assert found[-1]["finding"]["message"] == session.findings[0].message


def test_a_finding_that_is_no_more_is_withdrawn(tmp_path, lines_of, monkeypatch):
    path, loop = tmp_path / "run.jsonl", Loop()
    with gs.audit(stream=path) as session:
        loop.step()
        loop.step()
        kept = session.findings
        assert len(kept) == 1
        monkeypatch.setattr(type(session), "findings", property(lambda _: ()))
        loop.step()
    assert [line["type"] for line in lines_of(path)] == ["start", "finding", "withdrawn", "end"]


def test_a_session_that_is_entered_for_each_step_ends_seldom(tmp_path, lines_of):
    path, loop = tmp_path / "run.jsonl", Loop()
    step = gs.audit(stream=path)(loop.step)
    for _ in range(40):
        step()
    lines = lines_of(path)
    assert [line["type"] for line in lines].count("start") == 1
    assert [line["type"] for line in lines].count("end") <= 8
    assert codes(lines)[0] == "GCS301"


def test_a_file_that_is_there_is_kept(tmp_path, lines_of):
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        with gs.audit(stream=path):
            pass
    assert [line["type"] for line in lines_of(path)] == ["start", "end"] * 2


def test_a_relative_path_is_where_the_audit_began(tmp_path, lines_of, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    session = gs.audit(stream="run.jsonl")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with session:
        Loop().step()
    assert len(lines_of(tmp_path / "run.jsonl")) == 2


@pytest.mark.parametrize("value", [3, "", True])
def test_what_is_no_path_is_refused(value):
    with pytest.raises(UsageError, match="stream must be the path of a file, got"):
        gs.audit(stream=value)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no such device here")  # noqa: PTH110
def test_a_full_disk_is_told_once_and_costs_nothing_else(capfd):
    loop = Loop()
    with gs.audit(stream="/dev/full") as session:
        for _ in range(12):
            loop.step()
    told = capfd.readouterr().err
    assert told.count("warning: cannot write the stream /dev/full: No space left on device") == 1
    assert "the program runs on" in told
    assert [finding.code for finding in session.findings] == ["GCS301"]
    (line,) = [line for line in session.report.not_covered if "stream" in line]
    assert line.startswith("the stream /dev/full: ")
    assert "not written (No space left on device)" in line


@pytest.mark.parametrize("kind", ["folder", "missing"])
def test_a_stream_that_cannot_be_opened(tmp_path, capfd, kind):
    path = tmp_path if kind == "folder" else tmp_path / "missing" / "run.jsonl"
    with gs.audit(stream=path) as session:
        Loop().step()
    assert "warning: cannot write the stream" in capfd.readouterr().err
    assert session.report.summary["steps"] == 1
    assert any("the stream" in line for line in session.report.not_covered)


def test_the_rest_of_a_line_follows_once_there_is_room(tmp_path, monkeypatch):
    path, room, write = tmp_path / "run.jsonl", [30], os.write

    def on_a_small_disk(file, data):
        taken = data[: room[0]]
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= len(taken)
        return write(file, taken)

    told = []
    lines = streaming.LineFile(str(path), on_trouble=told.append)
    monkeypatch.setattr(streaming.os, "write", on_a_small_disk)
    lines.add({"type": "start", "step": 0})
    lines.add({"type": "withdrawn", "step": 1})
    for _ in range(4):
        lines.send()
    assert path.stat().st_size == 30
    assert len(told) == 1
    room[0] = 10_000
    lines.send(at_once=True)
    lines.close()
    assert (lines.waiting, lines.trouble) == (0, None)
    assert [json.loads(line)["type"] for line in path.read_text().splitlines()] == [
        "start",
        "withdrawn",
    ]


SCRIPT = """\
import torch
from torch import nn
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    net(torch.randn(3, 2)).sum().backward()
    optimizer.step()
"""
_MAIN = "import sys; from gradcheck_suite.cli import main; sys.exit(main(sys.argv[1:]))"


def run(folder, source, *options):
    (folder / "train.py").write_text(textwrap.dedent(source))
    return warm_python.run(["-c", _MAIN, "audit", *options, "train.py"], cwd=folder)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no such signal here")
@pytest.mark.slow
def test_a_killed_process_loses_nothing(tmp_path, lines_of):
    source = SCRIPT + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    done = run(tmp_path, source, "--stream", "run.jsonl")
    assert done.returncode == -signal.SIGKILL
    lines = lines_of(tmp_path / "run.jsonl")
    assert [line["type"] for line in lines] == ["start", "finding"]
    assert lines[1]["finding"]["code"] == "GCS301"
    assert lines[1]["finding"]["path"] == "train.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_children_write_nothing_and_the_report_is_the_same(tmp_path, lines_of):
    source = SCRIPT + (
        "import os\n"
        "if os.fork() == 0:\n"
        "    net(torch.randn(3, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    done = run(tmp_path, source, "--stream", "run.jsonl", "--output-format", "json")
    report = json.loads(done.stdout)
    lines = lines_of(tmp_path / "run.jsonl")
    assert lines[0]["type"] == "start"
    assert len({line["process"] for line in lines}) == 1
    last = [line["finding"] for line in lines if line["type"] == "finding"][-1]
    assert report["findings"] == [last]
    assert lines[-1]["summary"] == report["summary"]
