"""Put back what a test leaves changed in torch, and note it.

Grad mode, saved-tensors hooks and open audits belong to the whole thread. What a body or a fixture
of one test has changed, and its tear-down did not put back, would decide the outcome of every test
after it.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest

from pytest_gradcheck_suite.runtime import why_torch_is_unusable

__all__ = [
    "note_foreign_audit",
    "note_foreign_hooks",
    "notes_of",
    "record_state",
    "restore_state",
]

_STATES = pytest.StashKey["dict[str, _State]"]()
_NOTES = pytest.StashKey["list[str]"]()


class _State(NamedTuple):
    grad: bool
    anomaly: bool
    hooks: Any
    audits: tuple[Any, ...]


def record_state(item: pytest.Item, moment: str) -> None:
    """Record the state at the moment "set-up", "begin" or "end" of a test.

    Where torch is not loaded, nothing has been changed yet. Where it is too old, say, a test that
    uses ours hears of that, and others do not.
    """
    states = item.stash.setdefault(_STATES, {})
    if "torch" in sys.modules and why_torch_is_unusable("") is None:
        states[moment] = _current_state()


def restore_state(item: pytest.Item) -> None:
    """Put back what the body and the tear-down of a test have left changed, and note it.

    What a fixture that other tests share has set is the fixture's affair, and left alone.
    """
    states = item.stash.get(_STATES, None)
    if states is None:
        return
    # Pytest keeps what an item has until the run is over.
    del item.stash[_STATES]
    if "end" not in states:
        return
    import torch  # noqa: PLC0415 - loaded long ago

    # A body that was the first to load torch found everything as torch makes it.
    begin = states.get("begin", _INITIAL)
    set_up, end = states.get("set-up", _INITIAL), states["end"]
    now = _current_state()
    if set_up == begin == end == now:
        return
    for session in reversed(now.audits):
        if session in end.audits and session not in begin.audits:
            while session in _open_audits():
                session.__exit__(None, None, None)
            _note(item, "left an audit open; it was closed: use `with gradcheck_suite.audit():`")
    now = _current_state()
    is_owned = set_up != begin and _shared_fixture_is_alive(item)
    moments = (set_up, begin, end, now)
    if (grad := _unrestored([state.grad for state in moments], is_owned)) is not None:
        state = "enabled" if now.grad else "disabled"
        torch.set_grad_enabled(grad)
        _note(item, f"left grad mode {state}; it was put back: use `with torch.no_grad():`")
    if (anomaly := _unrestored([state.anomaly for state in moments], is_owned)) is not None:
        torch.autograd.set_detect_anomaly(anomaly)
        _note(item, "left anomaly mode changed; it was put back")
    hooks = [state.hooks or () for state in moments]
    if now.hooks is not None and (below := _unrestored(hooks, is_owned)) is not None:
        _pop_hooks_above(below or None)
        _note(
            item,
            "left saved-tensors hooks registered; they were removed: use "
            "`with torch.autograd.graph.saved_tensors_hooks(...):`",
        )


def _unrestored(moments: list[Any], is_owned: bool) -> Any:
    """Return what a test or its own fixtures have changed and not put back; None if nothing.

    Args:
        moments: how it was before the set-up, before the body, after it, and is now.
        is_owned: whether the set-up's change may be that of a fixture which other tests share.
    """
    set_up, begin, end, now = moments
    if set_up == begin != end == now:
        return begin
    if set_up != begin == end == now and not is_owned:
        return set_up
    return None


def _shared_fixture_is_alive(item: pytest.Item) -> bool:
    """Return whether a fixture that this test shares with others is still set up."""
    info = getattr(item, "_fixtureinfo", None)
    if info is None:
        return True
    return any(
        fixture.scope != "function" and fixture.cached_result is not None
        for name, fixtures in info.name2fixturedefs.items()
        if name not in _HARMLESS
        for fixture in fixtures
    )


_HARMLESS = frozenset({"pytestconfig", "record_testsuite_property", "tmp_path_factory"})


def note_foreign_hooks(item: pytest.Item) -> None:
    """Note that an audit can't watch saved tensors, because somebody's hooks act on them."""
    from gradcheck_suite import _torch_compat  # noqa: PLC0415 - needs torch

    hooks = _torch_compat.top_saved_tensors_hooks()
    if _torch_compat.saved_tensors_hooks_are_disabled():
        _note(item, "saved tensors were not audited: saved-tensors hooks are disabled here")
    elif hooks is not None and not any(map(_is_ours, hooks)):
        _note(
            item,
            f"saved tensors were not audited: the saved-tensors hooks of {_owner(hooks[0])} were "
            "active before the audit, and were left in charge",
        )


def note_foreign_audit(item: pytest.Item) -> bool:
    """Return whether a fixture holds an audit open, and note that it is left in charge if so."""
    if not _open_audits():
        return False
    _note(item, "was not audited: an audit was open already, and was left in charge")
    return True


def notes_of(item: pytest.Item) -> list[str]:
    """Return what was noted of this test, and forget it."""
    notes = item.stash.get(_NOTES, None)
    if notes is None:
        return []
    del item.stash[_NOTES]
    return notes


def _note(item: pytest.Item, text: str) -> None:
    notes = item.stash.setdefault(_NOTES, [])
    if text not in notes:
        notes.append(text)


_INITIAL = _State(grad=True, anomaly=False, hooks=None, audits=())


def _current_state() -> _State:
    import torch  # noqa: PLC0415 - loaded long ago

    from gradcheck_suite import _torch_compat  # noqa: PLC0415 - needs torch

    return _State(
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        _torch_compat.top_saved_tensors_hooks(),
        _open_audits(),
    )


def _open_audits() -> tuple[Any, ...]:
    # Where it is not loaded, no audit was ever begun.
    auditing = sys.modules.get("gradcheck_suite.auditing.session")
    return () if auditing is None else auditing.open_sessions()


def _pop_hooks_above(hooks: Any) -> None:
    from gradcheck_suite import _torch_compat  # noqa: PLC0415 - loaded long ago

    while (top := _torch_compat.top_saved_tensors_hooks()) is not None and top != hooks:
        _torch_compat.remove_saved_tensors_hooks(top)


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("gradcheck_suite.")


def _owner(hook: Any) -> str:
    module = getattr(hook, "__module__", None)
    return f"{module}" if module else "another plugin"
