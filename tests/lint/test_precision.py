from __future__ import annotations

from pathlib import Path

from benchmarks.lint_precision import compare, judged, page, scores

PAGE = Path(__file__).parents[2] / "docs" / "lint-precision.md"


def test_page_is_what_the_data_makes():
    assert PAGE.read_text(encoding="utf-8") == page(judged())


def test_every_judgement_has_a_reason_and_a_commit():
    data = judged()
    assert all(one["reason"] and one["repository"] in data["commits"] for one in data["findings"])


def test_a_wrong_error_misses_the_goal():
    data = judged()
    assert scores(data).met
    errors = [one for one in data["findings"] if one["severity"] == "error"]
    wrong = [{**one, "right": False} for one in errors]
    assert not scores({**data, "findings": wrong}).met


def test_what_is_new_and_what_is_gone_is_named(tmp_path):
    (tmp_path / "a+b").mkdir()
    source = "import torch\nw = torch.ones(1, requires_grad=True)\nw += 1\n"
    (tmp_path / "a+b" / "x.py").write_text(source)
    gone = {"repository": "a/b", "path": "y.py", "line": 1, "code": "GCS101", "severity": "error"}
    told = compare(tmp_path, {"commits": {"a/b": "0"}, "findings": [gone]})
    assert [line.partition(":")[0] for line in told] == ["not judged", "gone"]


def test_every_judgement_at_first_contact_has_a_reason_and_a_commit():
    for contact in judged()["first_contact"]:
        assert len(contact["linter"]) == len("d" * 40)
        for one in contact["findings"]:
            assert one["reason"]
            assert one["repository"] in contact["commits"]
            assert one["right"] in {True, False, None}


def test_first_contact_is_counted_by_verdict():
    (contact,) = judged()["first_contact"]
    kept = [{**one, "right": None, "stays": False} for one in contact["findings"]]
    lines = page({**judged(), "first_contact": [{**contact, "findings": kept}]}).splitlines()
    errors = sum(one["severity"] == "error" for one in kept)
    assert f"| errors | 0 | 0 | {errors} | 0, 0 wrong |" in lines
