from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gradcheck_lint import workers
from gradcheck_lint.cache import Cache, default_directory, open_cache
from gradcheck_lint.config import Settings
from gradcheck_lint.engine import lint
from gradcheck_lint.runner import Options, lint_paths
from gradcheck_lint.tasks import Task, perform
from gradcheck_lint.workers import perform_all, worker_count
from gradcheck_suite.findings import Finding, Location, Related
from gradcheck_suite.severity import Severity


@pytest.fixture
def project(tmp_path, monkeypatch, buggy):
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        (tmp_path / f"a{number}.py").write_text(f"{buggy}# {number}\n")
    return tmp_path


def _lint(root, cache=None, jobs=1):
    options = Options(cache=cache, jobs=jobs)
    return lint_paths(["."], settings_for=lambda _: Settings(root), options=options)


def _shards(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


class TestCache:
    def test_second_run_parses_nothing_and_finds_the_same(self, project, tmp_path, monkeypatch):
        first = _lint(project, Cache(tmp_path / "cache"))

        def refuse(*_, **__):
            raise AssertionError("it should have been remembered")

        monkeypatch.setattr("gradcheck_lint.engine.lint", refuse)
        second = _lint(project, Cache(tmp_path / "cache"))
        assert first.failures == second.failures == ()
        assert second.report == first.report
        assert len(first.report.findings) == 4

    def test_changed_source_is_read_anew(self, project, tmp_path):
        _lint(project, Cache(tmp_path / "cache"))
        (project / "a0.py").write_text("import torch\n")
        assert len(_lint(project, Cache(tmp_path / "cache")).report.findings) == 3

    def test_other_rules_are_other_answers(self, project, tmp_path):
        cache = Cache(tmp_path / "cache")
        _lint(project, cache)
        settings = Settings(project, ignore=frozenset({"GCS301"}))
        options = Options(cache=Cache(tmp_path / "cache"))
        run = lint_paths(["."], settings_for=lambda _: settings, options=options)
        assert run.report.findings == ()

    def test_same_source_elsewhere_has_its_own_path(self, project, tmp_path):
        cache = Cache(tmp_path / "cache")
        (project / "b").mkdir()
        (project / "b" / "a0.py").write_text((project / "a0.py").read_text())
        paths = {finding.location.path for finding in _lint(project, cache).report.findings}
        again = _lint(project, Cache(tmp_path / "cache")).report.findings
        assert paths == {finding.location.path for finding in again}
        assert str(Path("b") / "a0.py") in paths

    @pytest.mark.parametrize(
        "junk",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"[]",
            b'{"a0.py": 1}',
            b'{"a0.py": ["x", []], "a1.py": [2, 3]}',
            b"[" * 100_000,
        ],
    )
    def test_corrupt_cache_is_ignored_and_written_anew(self, project, tmp_path, junk):
        expected = _lint(project, Cache(tmp_path / "cache")).report
        (shard,) = _shards(tmp_path / "cache")
        shard.write_bytes(junk)
        assert _lint(project, Cache(tmp_path / "cache")).report == expected
        assert len(json.loads(shard.read_bytes())) == 4

    @pytest.mark.parametrize(
        "entry", [[["GCS301"]], [None], 7, [["GCS301", 1, 2, 3, 4, 5, 6, 7, 8]], "text"]
    )
    def test_entry_of_the_wrong_shape_is_no_entry(self, project, tmp_path, entry):
        expected = _lint(project, Cache(tmp_path / "cache")).report
        (shard,) = _shards(tmp_path / "cache")
        document = json.loads(shard.read_bytes())
        shard.write_text(json.dumps({name: [item[0], entry] for name, item in document.items()}))
        assert _lint(project, Cache(tmp_path / "cache")).report == expected

    def test_every_part_of_a_finding_comes_back(self, tmp_path):
        path = str(tmp_path / "x.py")
        place = Location(path, 1, 2, 3, 4, "f")
        finding = Finding(
            "GCS301", "missing-zero-grad", Severity.NOTE, "m", "lint", place,
            (Related(Location(path, 5), "r"),), "h", {"a": (1, {"b": ("c", None)})}, True,
        )  # fmt: skip
        (tmp_path / "x.py").touch()
        cache = Cache(tmp_path / "cache")
        cache.put(path, "digest", [finding])
        cache.save()
        assert Cache(tmp_path / "cache").get(path, "digest") == (finding,)
        assert Cache(tmp_path / "cache").get(path, "other") is None

    def test_files_that_are_gone_are_forgotten(self, project, tmp_path):
        _lint(project, Cache(tmp_path / "cache"))
        (project / "a0.py").unlink()
        (project / "a1.py").write_text("import torch  # backward step for\n")
        _lint(project, Cache(tmp_path / "cache"))
        (shard,) = _shards(tmp_path / "cache")
        assert json.loads(shard.read_bytes()).keys() == {"a1.py", "a2.py", "a3.py"}

    def test_other_versions_are_forgotten_after_a_while(self, project, tmp_path):
        old, young = tmp_path / "cache" / ("0" * 24), tmp_path / "cache" / ("1" * 24)
        for folder in (old, young):
            folder.mkdir(parents=True)
        os.utime(old, (0, 0))
        _lint(project, Cache(tmp_path / "cache"))
        assert not old.exists()
        assert young.exists()

    def test_cache_that_can_not_be_written_is_none(self, project, tmp_path):
        (tmp_path / "file").write_text("")
        assert len(_lint(project, Cache(tmp_path / "file" / "cache")).report.findings) == 4

    @pytest.mark.slow
    def test_two_runs_at_once_agree(self, project, tmp_path):
        words = [sys.executable, "-m", "gradcheck_lint", ".", "--cache-dir", str(tmp_path / "c")]
        for _ in range(2):
            runs = [subprocess.Popen(words, cwd=project, stdout=subprocess.PIPE) for _ in range(2)]
            outputs = [run.communicate(timeout=60)[0] for run in runs]
            assert outputs[0] == outputs[1]
            assert outputs[0].count(b"GCS301") == 4
        assert all(json.loads(shard.read_bytes()) for shard in _shards(tmp_path / "c"))

    def test_place_of_the_cache(self, tmp_path, monkeypatch):
        assert open_cache(None, enabled=False) is None
        monkeypatch.setenv("GRADCHECK_LINT_CACHE_DIR", str(tmp_path))
        assert default_directory() == tmp_path
        monkeypatch.delenv("GRADCHECK_LINT_CACHE_DIR")
        assert "gradcheck-lint" in str(default_directory())

    def test_no_home_is_no_cache(self, project, monkeypatch):
        def homeless():
            raise RuntimeError("Could not determine home directory")

        monkeypatch.setattr("gradcheck_lint.cache.default_directory", homeless)
        assert len(_lint(project, open_cache(None, enabled=True)).report.findings) == 4


def _tasks(buggy, count):
    return [Task(f"a{number}.py", buggy.encode(), None) for number in range(count)]


class TestWorkers:
    @pytest.mark.slow
    def test_findings_are_those_of_one_process(self, buggy):
        tasks = _tasks(buggy, 5)
        shared = {task.path: outcome for task, outcome in perform_all(tasks, workers=2)}
        assert shared == {task.path: outcome for task, outcome in perform_all(tasks, workers=1)}
        assert len(shared) == 5

    @pytest.mark.slow
    def test_report_does_not_depend_on_who_is_first(self, project):
        assert _lint(project, jobs=3).report == _lint(project, jobs=1).report

    @pytest.mark.slow
    def test_death_of_a_worker_concerns_one_file(self, buggy, monkeypatch):
        """A worker that kills itself over one file, as native code may."""
        real = workers._Worker._started

        def started(self):
            process = real(self)
            self.tasks = getattr(self, "tasks", 0) + 1
            if self.tasks == 2:
                process.send_signal(signal.SIGSEGV)
                process.wait()
            return process

        monkeypatch.setattr(workers._Worker, "_started", started)
        outcomes = [outcome for _, outcome in perform_all(_tasks(buggy, 5), workers=1 + 1)]
        findings = [finding for outcome in outcomes for finding in outcome.findings]
        failures = [finding.message for finding in findings if finding.code == "GCS002"]
        killed = "internal error: the process that read it was killed by SIGSEGV; left out: "
        assert failures == [f"{killed}the whole file"] * len(failures)
        assert 1 <= len(failures) <= 2
        assert [finding.code for finding in findings].count("GCS301") == 5 - len(failures)

    @pytest.mark.slow
    def test_grown_worker_is_replaced(self, buggy, monkeypatch):
        monkeypatch.setattr(workers, "_BYTES_BEFORE_RENEWAL", 1)
        outcomes = [outcome for _, outcome in perform_all(_tasks(buggy, 3), workers=2)]
        assert sum(len(outcome.findings) for outcome in outcomes) == 3

    def test_what_the_tasks_raise_arrives(self, buggy):
        def tasks():
            yield from _tasks(buggy, 1)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            list(perform_all(tasks(), workers=2))

    @pytest.mark.slow
    def test_leaving_early_ends_the_workers(self, buggy):
        before = threading.active_count()
        pool = perform_all(_tasks(buggy, 20), workers=2)
        next(pool)
        pool.close()
        assert threading.active_count() == before

    @pytest.mark.slow
    def test_processes_come_up_before_there_are_tasks_and_end_without_any(self, buggy):
        started = workers.Workers()
        try:
            for count in (1, 1, 2, 2):
                started.prepare(count)
            assert started.count == 2
            processes = [worker._process for worker in started._ready]
            assert [process.poll() for process in processes] == [None, None]
            outcomes = [outcome for _, outcome in started.perform(_tasks(buggy, 3))]
            assert sum(len(outcome.findings) for outcome in outcomes) == 3
            started = workers.Workers()
            started.prepare(2)
            processes += [worker._process for worker in started._ready]
        finally:
            started.stop()
        assert all(process.poll() is not None for process in processes)

    def test_one_file_starts_no_process(self, project, monkeypatch):
        monkeypatch.setattr(workers._Worker, "_started", lambda _: pytest.fail("a process"))
        for name in ("a1.py", "a2.py", "a3.py"):
            (project / name).unlink()
        assert len(_lint(project, jobs=4).report.findings) == 1

    @pytest.mark.slow
    def test_directory_that_is_linted_is_not_imported_from(self, project):
        for name in ("json", "libcst", "pickle", "ast"):
            (project / f"{name}.py").write_text("raise SystemExit('imported!')  # torch\n")
        program = (
            "import sys; sys.path.remove('') if '' in sys.path else None\n"
            "from gradcheck_lint.cli import main; sys.exit(main(['.', '-j2', '--no-cache']))"
        )
        done = subprocess.run(
            [sys.executable, "-P", "-c", program] if sys.version_info >= (3, 11)
            else [sys.executable, "-c", program],
            cwd=project, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.stdout.count("GCS301") == 4
        assert "imported!" not in done.stderr

    @pytest.mark.parametrize(
        ("jobs", "size", "files", "expected"),
        [(1, 10**9, 9, 1), (5, 1, 9, 5), (5, 1, 2, 2), (None, 1000, 9, 1), (None, 10**9, 9, 4)],
    )
    def test_number_of_workers(self, monkeypatch, jobs, size, files, expected):
        monkeypatch.setattr(workers, "available_cpus", lambda: 4)
        assert worker_count(jobs, size, files) == expected

    def test_processors_are_counted(self, monkeypatch):
        assert workers.available_cpus() >= 1
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        assert workers.available_cpus() >= 1

    def test_failure_of_the_linter_is_told_and_the_rest_is_linted(self, monkeypatch, buggy):
        def fail(source, path, **options):
            if path == "a0.py":
                raise ZeroDivisionError("x")
            if path == "a1.py":
                raise MemoryError
            return lint(source, path, **options)

        monkeypatch.setattr("gradcheck_lint.engine.lint", fail)
        found = [finding for task in _tasks(buggy, 3) for finding in perform(task).findings]
        assert [(finding.code, finding.location.path) for finding in found] == [
            ("GCS002", "a0.py"),
            ("GCS002", "a1.py"),
            ("GCS301", "a2.py"),
        ]
        assert "ZeroDivisionError: x" in found[0].message
        assert "there is not enough memory for it" in found[1].message

    @pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
    @pytest.mark.slow
    def test_interrupt_ends_the_run_at_once(self, tmp_path, buggy):
        for number in range(60):
            (tmp_path / f"a{number}.py").write_text(buggy + buggy.split("\n", 1)[1] * 200)
        process = subprocess.Popen(
            [sys.executable, "-m", "gradcheck_lint", "-j2", "--no-cache", "."],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 130
        assert errors == "gradcheck-lint: interrupted\n"
