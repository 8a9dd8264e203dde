"""Real jobs of two ranks: who tells, what ends how, and what is lost."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.auditing.distributed.jobs import (
    HEAD,
    audit_job,
    audit_words,
    line_of,
    run_job,
    start_job,
)

TRAIN = """
torch.manual_seed(0)
model = DDP(nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    opt.zero_grad()
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    opt.step()
    return loss
"""
KEPT_ON_RANK_1 = (
    TRAIN
    + """
history = []
for _ in range(8):
    loss = step()
    if rank == 1:
        history.append(loss)  # kept
del loss, history, model, opt
"""
)
FOUND = {"GCS201"}


def codes(report):
    return {each["code"] for each in report["findings"]}


def begin(program, folder, *options):
    (folder / "train.py").write_text(HEAD + program)
    return start_job(audit_words(*options), cwd=folder)


@pytest.mark.slow
def test_a_finding_on_one_rank_is_told_by_rank_0_once_all_have_ended(tmp_path):
    program = KEPT_ON_RANK_1 + "\nif rank == 0:\n    time.sleep(1)\n    open('done', 'w')\n"
    report, runs = audit_job(program, tmp_path)
    assert [run.returncode for run in runs] == [1, 0]
    assert (tmp_path / "done").exists()
    (finding,) = report["findings"]
    assert finding["line"] == line_of(program, "# kept")
    assert finding["evidence"]["ranks"] == [1]
    assert report["summary"]["world_size"] == 2
    assert report["not_covered"] == []


@pytest.mark.slow
def test_a_clean_job_is_clean_on_all_ranks_and_has_the_same_bits(tmp_path):
    program = (
        TRAIN
        + """
for _ in range(5):
    step()
print([each.tolist() for each in model.parameters()], torch.get_rng_state().sum())
del model, opt
"""
    )
    report, runs = audit_job(program, tmp_path, "--compare-optimizer-state")
    assert [run.returncode for run in runs] == [0, 0], runs
    assert report["findings"] == report["not_covered"] == []
    bare = run_job(["train.py"], cwd=tmp_path)
    assert [run.stdout for run in runs] == [run.stdout for run in bare]


@pytest.mark.slow
def test_the_rank_stands_in_names_of_files_and_in_the_lines_of_a_stream(tmp_path):
    (tmp_path / "own").mkdir()
    options = ("--stream", "all.jsonl", "--output-file", "own/{rank}.json")
    _, runs = audit_job(KEPT_ON_RANK_1, tmp_path, *options)
    assert [run.returncode for run in runs] == [1, 0]
    own = [json.loads((tmp_path / "own" / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [codes(each) for each in own] == [FOUND, FOUND]
    assert own[1]["summary"]["rank"] == 1
    assert "ranks" not in own[1]["findings"][0]["evidence"]
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert {(each["rank"], each["world_size"]) for each in lines} == {(0, 2), (1, 2)}
    assert {each["rank"] for each in lines if each["type"] == "finding"} == {1}


@pytest.mark.slow
def test_an_exception_on_one_rank_ends_the_job_as_without_the_audit(tmp_path):
    program = (
        TRAIN
        + """
history = []
for index in range(8):
    if rank == 1 and index == 6:
        raise ValueError("bad batch")
    history.append(step())  # kept
"""
    )
    report, runs = audit_job(program, tmp_path)
    assert [run.returncode for run in runs] == [1, 1]
    assert "ValueError: bad batch" in runs[1].stderr
    assert codes(report) == FOUND
    assert report["findings"][0]["evidence"]["ranks"] == [0, 1]


@pytest.mark.slow  # waits for ranks that do not answer
@pytest.mark.parametrize("killed", [0, 1])
def test_what_a_killed_rank_had_found_is_told_by_another(tmp_path, killed):
    program = (
        TRAIN
        + f"""
history = []
for index in range(8):
    loss = step()
    if rank == {killed}:
        history.append(loss)  # kept
    if rank == {killed} and index == 7:
        os.kill(os.getpid(), 9)
step()
"""
    )
    report, runs = audit_job(program, tmp_path, launcher_serves=True)
    assert runs[killed].returncode == -signal.SIGKILL
    assert runs[1 - killed].returncode == 1
    assert codes(report) == FOUND
    assert report["findings"][0]["evidence"]["ranks"] == [killed]
    assert any(line.startswith(f"rank {killed}, which did not") for line in report["not_covered"])


@pytest.mark.slow  # as above
def test_a_rank_that_hangs_is_named_and_holds_up_nobody_for_long(tmp_path):
    program = TRAIN + "\nfor _ in range(3):\n    step()\nif rank == 1:\n    time.sleep(60)\n"
    began = time.monotonic()
    processes = begin(program, tmp_path, "--wait-for-ranks", "1")
    processes[0].communicate(30)
    assert processes[0].returncode == 0
    assert time.monotonic() - began < 20
    report = json.loads((tmp_path / "report.json").read_text())
    (line,) = report["not_covered"]
    assert line.startswith("rank 1, which did not hand in its report within 1 s; what it had found")
    processes[1].terminate()
    processes[1].communicate(30)
    assert processes[1].returncode == -signal.SIGTERM


@pytest.mark.slow
def test_sigterm_of_the_launcher_writes_one_report(tmp_path):
    program = KEPT_ON_RANK_1 + "\nopen(f'there{rank}', 'w')\ntime.sleep(60)\n"
    processes = begin(program, tmp_path)
    while not all((tmp_path / f"there{rank}").exists() for rank in (0, 1)):
        time.sleep(0.05)
    for process in processes:
        process.terminate()
    for process in processes:
        process.communicate(30)
    assert [process.returncode for process in processes] == [-signal.SIGTERM] * 2
    report = json.loads((tmp_path / "report.json").read_text())
    assert codes(report) == FOUND


@pytest.mark.slow
def test_audits_inside_the_program_are_told_at_the_end_by_rank_0(tmp_path):
    program = "import gradcheck_suite as gs\nwith gs.audit():\n"
    program = HEAD + program + "".join(f"    {line}\n" for line in KEPT_ON_RANK_1.splitlines())
    (tmp_path / "train.py").write_text(program + "\ndist.barrier()\nprint('after', flush=True)\n")
    runs = run_job(["train.py"], cwd=tmp_path)
    assert [run.returncode for run in runs] == [0, 0]
    assert "GCS201" in runs[0].stderr
    assert "only on rank 1 of 2" in runs[0].stderr
    assert "gradcheck" not in runs[1].stderr


@pytest.mark.slow
def test_an_audit_on_one_rank_alone_waits_for_nobody(tmp_path):
    program = (
        HEAD
        + TRAIN
        + """
import contextlib, gradcheck_suite as gs
with gs.audit() if rank == 0 else contextlib.nullcontext():
    history = [step() for _ in range(8)]
"""
    )
    (tmp_path / "train.py").write_text(program)
    began = time.monotonic()
    runs = run_job(["train.py"], cwd=tmp_path)
    assert time.monotonic() - began < 20
    assert "rank 1, where no audit was begun" in " ".join(runs[0].stderr.split())


@pytest.mark.slow
def test_without_a_store_each_rank_tells_of_itself(tmp_path):
    program = """
import torch
w = torch.ones(2, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.1)
for _ in range(3):
    w.pow(2).sum().backward()
    opt.step()
"""
    report, runs = audit_job(program, tmp_path, "--output-file", "{rank}.json", whole=True)
    assert report == {}
    for rank in (0, 1):
        own = json.loads((tmp_path / f"{rank}.json").read_text())
        assert codes(own) == {"GCS301"}
        assert own["not_covered"][-1].startswith("findings of the other ranks, and what differs")
    assert [run.returncode for run in runs] == [0, 0]


OTHER_VERSION = """
if rank == 1:
    import gradcheck_suite._version
    gradcheck_suite._version.__version__ = "9.9.9"
    from gradcheck_suite.auditing.distributed import rank_reports
    pack = rank_reports.packed
    rank_reports.packed = lambda report: FORM
import gradcheck_suite as gs
with gs.audit(report="report.json"):
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "told"),
    [("pack(report)", "are told"), ("b'[2]'", "can't be read, and are not told")],
)
def test_another_version_on_one_rank_is_said_and_loses_nothing_else(tmp_path, form, told):
    train = TRAIN.replace("lr=0.01", "lr=0.01 * (rank + 1)")
    inside = train + "\nhistory = [step() for _ in range(8)]\ndel history, model, opt\n"
    program = HEAD + OTHER_VERSION.replace("FORM", form)
    program += "".join(f"    {line}\n" for line in inside.splitlines())
    (tmp_path / "train.py").write_text(program + "\ndist.barrier()\n")
    runs = run_job(["train.py"], cwd=tmp_path)
    assert [run.returncode for run in runs] == [0, 0], runs
    report = json.loads((tmp_path / "report.json").read_text())
    # The rates differ; what two versions have written down proves nothing.
    assert codes(report) == FOUND
    ranks = [0, 1] if told == "are told" else [0]
    assert [each["evidence"]["ranks"] for each in report["findings"]] == [ranks]
    (line,) = report["not_covered"]
    assert line.startswith("what differs between rank 1 and others: its audit is of ")
    assert "gradcheck-suite 9.9.9, that of rank 0 of " in line
    assert line.endswith(told)


UNREDUCED = """
torch.manual_seed(0)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
for _ in range(8):
    opt.zero_grad()
    history.append(model(torch.randn(4, 4)).pow(2).mean())  # kept
    history[-1].backward()
    opt.step()
"""
FAKE = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
import torch.testing._internal.distributed.fake_pg
rank = int(os.environ["RANK"])
dist.init_process_group("fake", store=STORE, rank=rank, world_size=2)
"""


@pytest.mark.slow
def test_ranks_that_share_no_folder_each_tell_and_say_what_they_do_not_share(tmp_path):
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
    program = FAKE.replace("STORE", "dist.FileStore(f'{rank}/store')") + UNREDUCED
    report, runs = audit_job(
        program, tmp_path, "--output-file", "{rank}.json", "--wait-for-ranks", "1", whole=True
    )
    assert report == {}
    assert all(run.returncode in (0, 1) for run in runs)
    for rank in (0, 1):
        own = json.loads((tmp_path / f"{rank}.json").read_text())
        assert codes(own) == FOUND
        (line,) = own["not_covered"]
        assert line.startswith(f"rank {1 - rank}, where no audit was begun, or which have another ")
        assert line.endswith(f"{rank}/store, the file that ranks meet in")


@pytest.mark.slow
def test_a_group_that_is_there_already_and_reaches_nobody_is_named(tmp_path):
    program = FAKE.replace("STORE", "dist.HashStore()")
    program += "import gradcheck_suite as gs\nwith gs.audit(report='{rank}.json'):\n"
    program += "".join(f"    {line}\n" for line in UNREDUCED.splitlines())
    (tmp_path / "train.py").write_text(program)
    runs = run_job(["train.py"], cwd=tmp_path)
    assert [run.returncode for run in runs] == [0, 0], runs
    for rank in (0, 1):
        own = json.loads((tmp_path / f"{rank}.json").read_text())
        assert codes(own) == FOUND
        (line,) = own["not_covered"]
        assert line.startswith("findings of the other ranks, and what differs between ranks: the ")
        assert line.endswith("process group (fake) has a HashStore, which no other process reaches")


@pytest.mark.slow
def test_where_rank_0_begins_no_audit_another_tells(tmp_path):
    program = (
        HEAD
        + TRAIN
        + """
import contextlib, gradcheck_suite as gs
with gs.audit(report="report.json") if rank else contextlib.nullcontext():
    history = [step() for _ in range(8)]  # kept
del history, model, opt
dist.barrier()
"""
    )
    (tmp_path / "train.py").write_text(program)
    runs = run_job(["train.py"], cwd=tmp_path, ranks=3, launcher_serves=True)
    assert [run.returncode for run in runs] == [0, 0, 0], runs
    report = json.loads((tmp_path / "report.json").read_text())
    (finding,) = report["findings"]
    assert finding["evidence"]["ranks"] == [1, 2]
    assert report["not_covered"] == ["rank 0, where no audit was begun"]


@pytest.mark.slow
def test_a_store_that_ends_before_a_rank_does_loses_no_findings_of_that_rank(tmp_path):
    program = (
        KEPT_ON_RANK_1
        + """
dist.barrier()
if rank == 0:
    os.kill(os.getpid(), 9)
time.sleep(0.5)
"""
    )
    audit_job(program, tmp_path, "--output-file", "{rank}.json")
    own = json.loads((tmp_path / "1.json").read_text())
    assert codes(own) == FOUND
    (line,) = own["not_covered"]
    assert line.startswith("findings of the other ranks, and what differs between ranks: ")
