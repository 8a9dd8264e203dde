from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from gradcheck_suite._addresses import DOCUMENTATION
from gradcheck_suite.findings import Location, Related, Report
from gradcheck_suite.reporting import report_to_text, write_report
from gradcheck_suite.severity import Severity

LOOKED_AT = "(12 steps watched; 1 thing not covered)"


def text_of(finding):
    return report_to_text(Report("gradcheck-suite audit", (finding,)))


def test_a_finding_is_told_in_full(reports_of_each_kind):
    text = report_to_text(reports_of_each_kind["audit"])
    first = text.split("\n\nerror GCS201")[0]
    assert first.splitlines() == [
        "error GCS301 missing-zero-grad  train.py:9:9 in train_epoch()",
        "  The gradient of fc.weight was used by step() and then added to.",
        "",
        "   7 |     for x, y in loader:",
        "   8 |         loss = loss_fn(model(x), y)",
        "   9 |         loss.backward()",
        "     |         ^^^^^^^^^^^^^^^",
        "  10 |         optimizer.step()",
        "     |         ---------------- used here",
        "  11 |         total += loss",
        "",
        "  help: call `optimizer.zero_grad()` before `loss.backward()`",
        "  seen 1,200 times; also found by lint",
    ]


def test_the_end_of_a_report(reports_of_each_kind):
    lines = report_to_text(reports_of_each_kind["audit"]).splitlines()
    assert lines[-9:] == [
        "",
        "not covered",
        "  - the fused optimizer: its reads cannot be seen",
        "",
        "  seed 1234567, peak 3.0 MiB",
        "  Why it matters and what to write: gradcheck-suite explain GCS301 GCS201 GCS203",
        f"  {DOCUMENTATION}/catalogue.html",
        "  " + LOOKED_AT.strip("()"),
        "gradcheck-suite audit: 2 errors, 1 warning in train.py",
    ]


@pytest.mark.parametrize("columns", ["0", ""])
def test_a_width_of_zero_is_none(reports_of_each_kind, monkeypatch, columns):
    def written():
        stream = io.StringIO()
        write_report(reports_of_each_kind["audit"], output_format="full", stream=stream)
        return stream.getvalue()

    monkeypatch.delenv("COLUMNS", raising=False)
    unset = written()
    assert max(map(len, unset.splitlines())) > 60
    monkeypatch.setenv("COLUMNS", columns)
    assert written() == unset


NO_TRAINING = Report(
    "gradcheck-suite audit",
    summary={"steps": 0, "backwards": 0, "training_seen": False, "saved_tensors_checked": 0},
    not_covered=("gradients: no backward() ran inside the audit",),
)


def test_no_training_is_a_verdict_of_its_own():
    lines = report_to_text(NO_TRAINING).splitlines()
    assert lines[-2:] == [
        "  1 thing not covered",
        "gradcheck-suite audit: no training seen: 0 steps, 0 backwards in this process",
    ]
    for output_format in ("html", "concise"):
        stream = io.StringIO()
        write_report(NO_TRAINING, output_format=output_format, stream=stream)
        assert "no training seen: 0 steps, 0 backwards in this process" in stream.getvalue()
        assert "nothing found" not in stream.getvalue()


def test_findings_without_a_step_are_findings(reports_of_each_kind):
    report = replace(reports_of_each_kind["audit"], summary=NO_TRAINING.summary)
    assert report_to_text(report).splitlines()[-1].startswith("gradcheck-suite audit: 2 errors")


def test_how_the_audit_worked_is_for_programs_alone():
    text = report_to_text(NO_TRAINING)
    assert "backwards 0" in text
    assert "saved tensors" not in text
    assert "training seen no" not in text


def test_what_was_covered_is_told_before_what_was_not(reports_of_each_kind):
    report = reports_of_each_kind["audit"]
    summary = {**report.summary, "covered": ("inputs: transposed, expanded", "order 2")}
    lines = report_to_text(replace(report, summary=summary)).splitlines()
    assert lines[lines.index("covered") :][:6] == [
        "covered",
        "  - inputs: transposed, expanded",
        "  - order 2",
        "",
        "not covered",
        "  - the fused optimizer: its reads cannot be seen",
    ]
    assert "covered" not in report_to_text(replace(report, not_covered=(), summary={}))


def test_a_page_that_is_wide_enough_has_the_verdict_and_what_was_looked_at_on_one_line(
    reports_of_each_kind, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "120")
    stream = io.StringIO()
    write_report(reports_of_each_kind["audit"], output_format="full", stream=stream)
    last = stream.getvalue().splitlines()[-1]
    assert last == "gradcheck-suite audit: 2 errors, 1 warning in train.py " + LOOKED_AT


def test_a_related_place_farther_off_has_its_own_frame(reports_of_each_kind):
    text = report_to_text(reports_of_each_kind["audit"])
    assert "\n\n  held here  train.py:6:5\n   6 |     total = 0.0\n     |     -----\n\n" in text


def test_a_related_place_in_another_file_has_its_own_frame(train_file, make_finding):
    (train_file.parent / "model.py").write_text("a = 1\nself.cache.append(out)\n")
    place = Location("model.py", 2, 1, 2, 23, "Model.forward")
    text = text_of(make_finding(related=(Related(place, "held here"),)))
    assert "\n  held here  model.py:2:1 in Model.forward()\n   2 | self.cache.append(out)\n" in text


def test_the_place_of_the_finding_itself_can_bear_words(train_file, make_finding):
    place = Location("train.py", 9)
    text = text_of(make_finding(related=(Related(place, "added to here"),)))
    assert "^^^^^^^^^^^^^^^ added to here\n" in text
    assert "-----" not in text


def test_severities_come_worst_first_and_keep_their_order(make_finding):
    severities = [Severity.NOTE, Severity.ERROR, Severity.WARNING, Severity.ERROR]
    findings = tuple(
        make_finding(severity=severity, code=f"GCS90{number}", location=None)
        for number, severity in enumerate(severities)
    )
    text = report_to_text(Report("t", findings))
    headers = [" ".join(line.split()[:2]) for line in text.splitlines() if " GCS90" in line]
    assert headers[:4] == ["error GCS901", "error GCS903", "warning GCS902", "- GCS900"]


def test_explain_is_pointed_to_once_and_only_for_codes_that_it_knows(make_finding):
    findings = tuple(
        make_finding(code=code, location=None) for code in ("GCS999", "GCS301", "GCS201")
    )
    text = report_to_text(Report("t", findings))
    assert text.count("gradcheck-suite explain") == 1
    assert "gradcheck-suite explain GCS301" in text
    assert "explain" not in report_to_text(Report("t", findings[:1]))


def test_lint_says_what_it_can_fix(reports_of_each_kind):
    assert "(fixable with --fix)" in report_to_text(reports_of_each_kind["lint"])


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        ("train", " in train()"),
        ("<lambda>", " in <lambda>"),
        ("outer.<locals>.inner", " in outer.<locals>.inner()"),
        ("<module>", ""),
        (None, ""),
    ],
)
def test_functions_are_named_as_functions(make_finding, function, shown):
    text = text_of(make_finding(location=Location("train.py", 9, function=function)))
    assert text.splitlines()[0].endswith(f"train.py:9{shown}")


def test_few_verdicts_are_all_listed_the_failures_first(reports_of_each_kind):
    text = report_to_text(reports_of_each_kind["verify"])
    assert (
        "gradients\n"
        "  fail          out wrt bias    differs in 1 of 4 elements\n"
        "  inconclusive  out wrt x       a kink of relu within reach of the probe\n"
        "  not covered   out wrt table   int64 has no gradient\n"
        "  pass          out wrt weight\n"
    ) in text


def test_many_passes_are_one_line(make_verdicts):
    text = report_to_text(Report("t", verdicts=make_verdicts(passes=1200, failures=1)))
    assert "  fail  out wrt bias  differs\n  pass  1,200 gradients\n" in text
    text = report_to_text(Report("t", verdicts=make_verdicts(passes=12)))
    assert "gradients\n  pass  all 12 gradients\n" in text


def test_one_reason_that_many_gradients_share_is_told_once_with_their_names(make_verdicts):
    from gradcheck_suite.findings import Verdict

    layers = [Verdict("out", f"layers.{n}.weight", "fail", "differs") for n in range(9)]
    others = (
        Verdict("out", "bias", "fail", "is zero"),
        Verdict("loss", "bias", "fail", "differs"),
        Verdict("loss", "scale", "fail", "differs"),
    )
    text = report_to_text(Report("t", verdicts=(*make_verdicts(passes=2), *layers, *others)))
    assert (
        "gradients\n"
        "  fail  out wrt 9 tensors  differs\n"
        "          layers.0.weight, layers.1.weight, layers.2.weight, layers.3.weight,\n"
        "          layers.4.weight, layers.5.weight, layers.6.weight, layers.7.weight,\n"
        "          layers.8.weight\n"
        "  fail  out wrt bias       is zero\n"
        "  fail  loss wrt bias      differs\n"
        "  fail  loss wrt scale     differs\n"
        "  pass  2 gradients\n"
    ) in text


@pytest.fixture
def make_verdicts():
    from gradcheck_suite.findings import Verdict

    def make(passes, failures=0):
        return (
            *(Verdict("out", f"w{number}", "pass") for number in range(passes)),
            *(Verdict("out", "bias", "fail", "differs") for _ in range(failures)),
        )

    return make


def test_figures_are_readable():
    summary = {
        "probes": 1200,
        "random_seed": 1234567,
        "seconds": 3.14159,
        "saved_bytes": 2048,
        "deterministic": True,
        "model": "ResNet",
        "per_layer": {"fc": 1},
    }
    assert report_to_text(Report("t", summary=summary)).splitlines()[:2] == [
        "  probes 1,200, random seed 1234567, seconds 3.142, saved 2.0 KiB,",
        "  deterministic yes, model ResNet",
    ]


def test_code_in_a_message_stands_out(make_finding):
    report = Report("t", (make_finding(message="`fc.weight` and `b` but not this", location=None),))
    assert "  `\x1b[1mfc.weight\x1b[0m` and `\x1b[1mb\x1b[0m` but" in written(
        report, color="always"
    )
    odd = Report("t", (make_finding(message="one ` alone", location=None),))
    assert "  one ` alone\n" in written(odd, color="always")


def test_a_report_that_found_nothing_is_short():
    assert report_to_text(Report("gradcheck-suite audit")) == "gradcheck-suite audit: nothing found"


def test_source_that_is_gone_still_leaves_its_places(make_finding, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    related = Related(Location("gone.py", 3), "used here")
    text = text_of(make_finding(related=(related,), hint="call zero_grad()"))
    assert "|" not in text
    assert text.splitlines()[:6] == [
        "error GCS301 missing-zero-grad  train.py:9:9 in train_epoch()",
        "  The gradient of fc.weight was used by step() and then added to.",
        "",
        "  used here  gone.py:3",
        "",
        "  help: call zero_grad()",
    ]


@pytest.mark.parametrize("line", [0, -1, 10**9])
def test_a_line_that_the_file_lacks_has_no_frame(train_file, make_finding, line):
    assert "|" not in text_of(make_finding(location=Location("train.py", line)))


def test_markup_in_texts_is_printed_as_it_is(make_finding):
    nasty = "[bold red]x[/] [link=tel:1]"
    finding = make_finding(
        message=nasty,
        rule=nasty,
        location=Location(f"{nasty}.py", 1, function=nasty),
        related=(Related(Location(f"{nasty}.py", 2), nasty),),
        hint=nasty,
    )
    for color in ("never", "always"):
        text = written(Report(nasty, (finding,)), color=color)
        assert text.count("[bold red]x[/]") == 9
        assert text.count("[link=tel:1]") == 9


@pytest.mark.parametrize("width", [40, 80, 200])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
@pytest.mark.slow
def test_any_report_is_safe_to_print_at_any_width(any_report, unshown, width, data):
    report = data.draw(any_report)
    text = written(report, width=width)
    assert not unshown(text)
    assert text.endswith("\n")
    assert not any(line != line.rstrip(" ") for line in text.splitlines())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_the_terminal(reports_of_each_kind, width):
    for report in reports_of_each_kind.values():
        *lines, conclusion = written(report, width=width).splitlines()
        assert all(cell_len(line) <= width for line in lines)
        assert ": " in conclusion


def test_prose_is_not_wider_than_can_be_read(make_finding):
    text = written(Report("t", (make_finding(message="word " * 100, location=None),)), width=200)
    assert max(map(len, text.splitlines())) <= 100


def test_a_long_path_stays_in_one_piece(make_finding):
    path = "folder/" * 20 + "train.py"
    text = written(Report("t", (make_finding(location=Location(path, 9)),)), width=40)
    assert f"  {path}:9\n" in text


def test_rich_prints_a_report_within_its_width(reports_of_each_kind):
    for width in (20, 40, 100):
        stream = io.StringIO()
        Console(file=stream, width=width).print(reports_of_each_kind["audit"])
        assert all(cell_len(line) <= width for line in stream.getvalue().splitlines())
        assert "GCS301" in stream.getvalue()


def test_rich_prints_in_ascii_where_it_must(reports_of_each_kind):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Console(file=stream, width=80).print(reports_of_each_kind["audit"])
    stream.flush()
    assert b"  10 |         optimizer.step()" in raw.getvalue()


def test_str_of_a_report_is_the_full_text(reports_of_each_kind):
    report = reports_of_each_kind["audit"]
    assert str(report) == report_to_text(report)
    assert str(report).isascii()


def written(report, *, width=80, color="never"):
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        write_report(report, output_format="full", stream=stream, color=color)
    return stream.getvalue()
