"""Group, label and place the nodes of a graph; what is drawn of it is decided here."""

from __future__ import annotations
