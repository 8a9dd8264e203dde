"""The operators of ``ast`` and the nodes of libcst that say the same, one of each."""

from __future__ import annotations

import ast
from typing import Final

import libcst as cst

from gradcheck_lint.skeleton._nodes import bare, maker

AUGMENTED: Final = {
    ast.Add: bare(cst.AddAssign),
    ast.Sub: bare(cst.SubtractAssign),
    ast.Mult: bare(cst.MultiplyAssign),
    ast.MatMult: bare(cst.MatrixMultiplyAssign),
    ast.Div: bare(cst.DivideAssign),
    ast.FloorDiv: bare(cst.FloorDivideAssign),
    ast.Mod: bare(cst.ModuloAssign),
    ast.Pow: bare(cst.PowerAssign),
    ast.LShift: bare(cst.LeftShiftAssign),
    ast.RShift: bare(cst.RightShiftAssign),
    ast.BitAnd: bare(cst.BitAndAssign),
    ast.BitOr: bare(cst.BitOrAssign),
    ast.BitXor: bare(cst.BitXorAssign),
}
OPERATORS: Final = {
    ast.Add: bare(cst.Add),
    ast.Sub: bare(cst.Subtract),
    ast.Mult: bare(cst.Multiply),
    ast.MatMult: bare(cst.MatrixMultiply),
    ast.Div: bare(cst.Divide),
    ast.FloorDiv: bare(cst.FloorDivide),
    ast.Mod: bare(cst.Modulo),
    ast.Pow: bare(cst.Power),
    ast.LShift: bare(cst.LeftShift),
    ast.RShift: bare(cst.RightShift),
    ast.BitAnd: bare(cst.BitAnd),
    ast.BitOr: bare(cst.BitOr),
    ast.BitXor: bare(cst.BitXor),
    ast.And: bare(cst.And),
    ast.Or: bare(cst.Or),
    ast.Not: bare(cst.Not),
    ast.USub: bare(cst.Minus),
    ast.UAdd: bare(cst.Plus),
    ast.Invert: bare(cst.BitInvert),
    ast.Eq: bare(cst.Equal),
    ast.NotEq: maker(cst.NotEqual, "value")("!="),
    ast.Lt: bare(cst.LessThan),
    ast.LtE: bare(cst.LessThanEqual),
    ast.Gt: bare(cst.GreaterThan),
    ast.GtE: bare(cst.GreaterThanEqual),
    ast.Is: bare(cst.Is),
    ast.IsNot: bare(cst.IsNot),
    ast.In: bare(cst.In),
    ast.NotIn: bare(cst.NotIn),
}
