from __future__ import annotations

import ast
import sys
import time

import libcst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_lint.engine import lint_source
from gradcheck_lint.model.statements import StatementReader
from gradcheck_lint.parsing import MAX_BYTES, _has_symbols, _python_tree, check_source

_REFUSED = {
    "not UTF-8": b"import torch\nx = '\xff'\n",
    "unknown encoding": b"# coding: nope\nimport torch\n",
    "NUL": b"import torch\nx = 1\x00\n",
    "Python 2": b"import torch\nprint 'x'\n",
    "keyword that was a name": b"import torch\nx.cuda(async=True)\n",
    "not UTF-8 in a comment": b"import torch  # caf\xe9\n",
    "UTF-16": "import torch\n".encode("utf-16"),
    "UTF-16 without a mark": "import torch\n".encode("utf-16-be"),
    "not what it declares": b"# coding: ascii\nimport torch\nx = 'caf\xe9'\n",
    "unclosed": b"import torch\nx = (\n",
    "parentheses": b"torch = " + b"(" * 5000 + b"1" + b")" * 5000,
    "parentheses in an invalid file": b"torch = $" + b"(" * 50000,
    "operators": b"torch = " + b"-" * 30000 + b"1",
    "sum": b"torch = " + b"+".join([b"1"] * 20000),
    "attributes": b"torch" + b".a" * 30000,
    "elif": b"if torch: pass\n" + b"elif b: pass\n" * 20000,
    "and": b"torch = " + b" and ".join([b"a"] * 20000),
    "strings": b"torch = (" + b"'a' " * 20000 + b")",
}
_TOO_LARGE = {
    "long list": b"torch = [" + b"1,\n" * 20000 + b"]",
    "1 MB line": b"torch = [" + b"1," * (1 << 19) + b"]\nopt.step()",
    "10 MB line": b"torch = [" + b"1," * (5 << 20) + b"]\nopt.step()",
}


@pytest.mark.parametrize("source", _REFUSED.values(), ids=_REFUSED)
def test_unreadable_source_is_one_error(source):
    (finding,) = lint_source(source, "bad.py")
    assert (finding.code, finding.rule, finding.severity.value) == (
        "GCS000",
        "unreadable-file",
        "error",
    )
    assert finding.message.startswith("this file was not linted: ")
    assert finding.location.path == "bad.py"
    assert finding.location.line >= 1


@pytest.mark.parametrize("source", _TOO_LARGE.values(), ids=_TOO_LARGE)
def test_source_that_is_too_large_is_a_warning(source):
    (finding,) = lint_source(source, "large.py")
    assert (finding.code, finding.severity.value) == ("GCS000", "warning")


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("# é\nimport torch\n".encode("latin-1"), 1, "it is not UTF-8, and its first two lines"),
        ("import torch\n\nx = 'é'\n".encode("latin-1"), 3, "declare no other encoding"),
        ("# coding: ascii\nimport torch  # é\n".encode(), 2, "not ascii, which it declares"),
        ("import torch\n".encode("utf-16"), 1, "seems to be UTF-16; save it as UTF-8"),
    ],
)
def test_text_that_python_can_not_decode_is_told(command, tmp_path, source, line, words):
    (tmp_path / "a.py").write_bytes(source)
    done = command("--no-cache")
    assert done.returncode == 1
    assert f"a.py:{line}" in done.stdout
    assert words in done.stdout


def test_too_large_file_alone_is_no_reason_to_fail(command, tmp_path):
    (tmp_path / "a.py").write_bytes(b"import torch\nopt.step()\n" + b"#" * MAX_BYTES)
    (tmp_path / "b.py").write_bytes(b"x = 1\n" + b"#" * MAX_BYTES)
    done = command("--no-cache")
    assert done.returncode == 0
    assert "a.py:1: GCS000 [warning] this file was not linted: it has 524," in done.stdout
    assert "b.py" not in done.stdout
    assert command("--no-cache", "--fail-on", "warning").returncode == 1


def test_syntax_error_is_placed_where_python_places_it():
    (finding,) = lint_source(b"import torch\n\nx = = 1\n", "bad.py")
    assert (finding.location.line, finding.location.column) == (3, 5)
    assert "invalid syntax" in finding.message


@pytest.mark.parametrize(
    ("encoding", "newline"),
    [
        ("utf-8", "\n"),
        ("utf-8", "\r\n"),
        ("utf-8", "\r"),
        ("utf-8-sig", "\n"),
        ("utf-8-sig", "\r\n"),
        ("latin-1", "\n"),
        ("latin-1", "\r\n"),
    ],
)
def test_encodings_and_line_ends_are_read_and_counted(buggy, encoding, newline):
    text = f"# coding: {encoding.removesuffix('-sig')}\ncafé = 1\n{buggy}"
    (finding,) = lint_source(text.replace("\n", newline).encode(encoding), "x.py")
    assert (finding.code, finding.location.line, finding.location.column) == ("GCS301", 9, 9)


def test_byte_order_mark_does_not_shift_columns():
    source = "import torch; w = torch.ones(2, requires_grad=True); w += 1\n"
    (finding,) = lint_source(source.encode("utf-8-sig"), "x.py")
    assert finding.location.column == source.index("w += 1") + 1


def test_too_large_file_is_refused_and_says_how_large():
    source = b"import torch\nopt.step()\nloss.backward()\n" + b"#" * MAX_BYTES
    (finding,) = lint_source(source, "x.py")
    assert f"more than {MAX_BYTES:,}" in finding.message


def test_too_large_file_that_no_rule_would_read_is_passed_over():
    assert lint_source(b"import torch\n" + b"#" * MAX_BYTES, "x.py") == ()


def test_source_without_torch_is_never_parsed():
    assert lint_source(b"def broken(:\n", "x.py") == ()


def test_deep_but_usual_nesting_is_read(buggy):
    deep = "x = " + "[" * 60 + "]" * 60 + "\n" + "y = " + " + ".join(["1"] * 300) + "\n"
    (finding,) = lint_source((deep + buggy).encode(), "x.py")
    assert finding.code == "GCS301"


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_survived(noise):
    for source in (b"torch" + noise, b"import torch\n" + noise, noise + b"\nbackward = torch"):
        assert all(finding.code == "GCS000" for finding in lint_source(source, "x.py"))


@pytest.mark.parametrize("unit", ["+ 1", ".a", ".a()", "-1", "if a else b"])
@pytest.mark.parametrize("count", [50, 900, 3_000, 10_000])
def test_a_table_of_symbols_is_made_of_no_source_that_is_refused(unit, count):
    source = ("x = (a" + f"\n{unit} " * count + ")\n").encode()
    if _has_symbols(source):
        _python_tree(source)
    assert (check_source(source, "x.py") is None) is _is_parsed(source)


def _is_parsed(source):
    try:
        _python_tree(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


@pytest.mark.parametrize(
    "source",
    [
        b"def f(a, a): pass",
        b"nonlocal x",
        b"def f():\n    x = 1\n    global x",
        b"# coding: latin-1\nx = '\xe9'",
        b"\xef\xbb\xbfx = 1\r\ny = 2",
        b"return 1",
    ],
)
def test_what_python_parses_is_accepted_with_or_without_a_table_of_symbols(source):
    assert _is_parsed(source)
    assert check_source(source, "x.py") is None


@given(
    st.binary(max_size=60)
    | st.text(alphabet="defx ():=,*\n1+[]'\"#\\.", max_size=60).map(str.encode)
)
@settings(max_examples=400, deadline=None)
def test_a_table_of_symbols_needs_source_that_python_parses(source):
    assert not _has_symbols(source) or _is_parsed(source)


_PIECES = [
    "import torch",
    "w = torch.ones(3, requires_grad=True)",
    "w += 1",
    "w, v = v, w",
    "for i in range(3):",
    "while True:",
    "if w:",
    "else:",
    "try:",
    "except E as e:",
    "finally:",
    "with torch.no_grad():",
    "def f(self, *a, b=1, **k):",
    "class A(B):",
    "return w",
    "break",
    "continue",
    "raise",
    "pass",
    "loss.backward()",
    "opt.step(lambda: 1)",
    "opt.zero_grad()",
    "losses.append(loss)",
    "total += loss",
    "self.a.b[0] += yield_",
    "del w, x.grad",
    "x = [a async for a in b] if (c := 1) else {**d}",
    "match x:",
    "case [a, *b]:",
    "f(*a, **k)(x)[1:2, ..., None].T",
    "print(f'{w!r:>{n}}')",
    "global w",
    "x: int = 1",
    "lambda *a: (yield)",
]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(_PIECES)), max_size=14))
@settings(max_examples=400, deadline=None)
def test_whatever_python_accepts_is_read_without_a_crash(lines):
    source = "\n".join(
        ["import torch  # backward step for requires_grad"]
        + ["    " * depth + piece for depth, piece in lines]
    )
    refused = any(f.code == "GCS000" for f in lint_source(source.encode(), "x.py"))
    try:
        ast.parse(source)
        libcst.parse_module(source)
    except (SyntaxError, libcst.ParserSyntaxError):
        return
    assert not refused


def test_deeply_nested_loops_are_read_in_bounded_time(monkeypatch):
    reads = 0
    read_iteration = StatementReader._read_iteration

    def counted(self, *arguments):
        nonlocal reads
        reads += 1
        read_iteration(self, *arguments)

    monkeypatch.setattr(StatementReader, "_read_iteration", counted)
    lines = ["import torch"]
    for depth in range(14):
        lines.append("    " * depth + f"for i{depth} in data:")
        lines.append("    " * (depth + 1) + "a, b, c = b, c, f(a)")
    lines.append("    " * 14 + "a.backward(); opt.step()")
    lint_source("\n".join(lines).encode(), "x.py")
    assert 14 <= reads < 20_000


def test_facts_hold_after_any_number_of_iterations():
    names = [f"w{number}" for number in range(12)]
    source = "\n".join(
        [
            "import torch",
            f"{' = '.join(names)} = torch.ones(3, requires_grad=True)",
            "for x in data:",
            "    w0 += 1",
            f"    {', '.join(names)} = {', '.join([*names[1:], 'x'])}",
        ]
    )
    assert lint_source(source.encode(), "x.py") == ()


def test_rows_of_hash_signs_take_no_time():
    row = "#" * 40
    source = (
        "from torch.autograd import Variable\n\n"
        f"def f(out):\n    return g(out, {row}\n    {row}\n    Variable(out))\n"
    )
    began = time.process_time()
    assert [finding.code for finding in lint_source(source.encode(), "x.py")] == ["GCS901"]
    assert time.process_time() - began < 5


_REPEATED = {
    "functions": """
def train_{0}(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
""",
    "models": """
class Net{0}(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.first(x).relu()
""",
    "functions that call each other": """
def f{0}(model, x, optimizer):
    y = f{1}(model, model(x), optimizer) + f{2}(model, x, optimizer)
    y.mean().backward()
    optimizer.step()
    return y
""",
}


@pytest.mark.parametrize("part", _REPEATED.values(), ids=_REPEATED.keys())
def test_work_grows_as_the_file_does(part):
    def calls_for(count):
        parts = (part.format(i, (i + 1) % count, (7 * i + 3) % count) for i in range(count))
        source = "import torch\n" + "".join(parts)
        calls = 0

        def count_call(_, event, __):
            nonlocal calls
            calls += event == "call"

        previous = sys.getprofile()
        sys.setprofile(count_call)
        try:
            lint_source(source.encode(), "x.py")
        finally:
            sys.setprofile(previous)
        return calls

    calls_for(2)  # what is done once
    assert calls_for(80) < 2.3 * calls_for(40)
