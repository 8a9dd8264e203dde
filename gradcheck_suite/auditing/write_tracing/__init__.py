"""Watch saved tensors line by line for who writes into them, for a short while and on suspicion.

A write through numpy, ``tensor.data = ...``, the storage or an extension takes no note. Once a
checksum has shown such a write, the tensors that the same line saves are watched on the steps that
follow: after each line of the user's code, on any thread that can be followed, it is asked whether
their contents have changed. The first line after which they have is the writer.
"""

from __future__ import annotations

from gradcheck_suite.auditing.write_tracing.memory import Change
from gradcheck_suite.auditing.write_tracing.tracer import WriteTracer

__all__ = ["Change", "WriteTracer"]
