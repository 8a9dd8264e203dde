"""Tell what makes a layer with weights or a parameter, through calls and classes of the file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.function_class import assignments, returns
from gradcheck_lint.model.knowledge import PARAMETER_CLASSES, TORCH_MODULES_WITH_WEIGHTS, words
from gradcheck_lint.model.syntax import dotted_name, positional, walk
from gradcheck_lint.model.values import Kind

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope
    from gradcheck_lint.model.values import Value

WITHOUT_WEIGHTS = words(
    """
    ReLU ReLU6 RReLU LeakyReLU ELU CELU SELU GELU SiLU GLU Mish Hardswish Hardtanh Hardsigmoid
    Hardshrink Softshrink Tanhshrink Softplus Softsign Softmax Softmax2d Softmin LogSoftmax Sigmoid
    LogSigmoid Tanh Threshold Identity Flatten Unflatten Fold Unfold
    Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout
    MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d AvgPool1d AvgPool2d AvgPool3d
    LPPool1d LPPool2d LPPool3d FractionalMaxPool2d FractionalMaxPool3d AdaptiveAvgPool1d
    AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d
    ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d CircularPad1d
    CircularPad2d CircularPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d
    ReplicationPad2d ReplicationPad3d PixelShuffle PixelUnshuffle ChannelShuffle Upsample
    UpsamplingBilinear2d UpsamplingNearest2d InstanceNorm1d InstanceNorm2d InstanceNorm3d
    LocalResponseNorm CrossMapLRN2d CosineSimilarity PairwiseDistance
    """
)
"""The classes of ``torch.nn`` that have nothing to train as they are usually made."""
_MOST_CALLS = 3
_LAYER = re.compile(
    r"(?:Block|Layer|Conv|Linear|Norm(?!al)|Attention|Encoder|Decoder|Network|MLP|Transformer"
    r"|Resnet|Head|Expert|Adapter|LSTM|GRU)|^(?:get|make|build|create)_\w*(?:block|layer|conv)"
)

_NO_LAYER = re.compile(
    r"Aggr|Pool|Drop|Activation|Loss|Sampl|Transform(?!er)|Metric|Padding|Reshape|Rearrange|Flatten"
)
"""Parts of names of what packages called ``nn`` have without weights."""


def has_weights(value: Value, function: FunctionModel) -> bool:
    """Tell whether a parameter or layer of torch has something to train, a loss or ReLU not."""
    if value.kind is Kind.LEAF:
        return True
    if value.node is None:
        return False
    for node in walk(value.node):
        name = dotted_name(node.func) if type(node) is cst.Call else None
        made = function.module.scopes.resolve_import(name or "") or ""
        last = made.rpartition(".")[2]
        if made in PARAMETER_CLASSES or (
            made.startswith("torch.nn.")
            and last[:1].isupper()
            and last not in WITHOUT_WEIGHTS | _CONTAINERS
            and not last.endswith("Loss")
        ):
            return True
    return False


_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "DataParallel"})


def contents(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the expressions that make the elements of a plain container."""
    if isinstance(node, (cst.List, cst.Tuple, cst.Dict)):
        return [element.value for element in node.elements]
    if type(node) is cst.ListComp:
        return [node.elt]
    if type(node) is cst.DictComp:
        return [node.value]
    if type(node) is cst.BinaryOperation and type(node.operator) is cst.Multiply:
        return contents(node.left) if type(node.left) is cst.List else []
    return _contents_of_call(node) if type(node) is cst.Call else []


def _contents_of_call(node: cst.Call) -> list[cst.BaseExpression]:
    name, made = dotted_name(node.func), [argument.value for argument in node.args]
    if name in {"list", "tuple"}:
        return [each for source in made for each in _produced(source)]
    if name == "dict" and all(argument.keyword is not None for argument in node.args):
        return made
    return []


def _produced(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the expression that a comprehension, or ``map`` of a lambda, evaluates each time."""
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        return [node.elt]
    if type(node) is cst.Call and dotted_name(node.func) == "map" and node.args:
        made = node.args[0].value
        return [made.body] if type(made) is cst.Lambda else []
    return []


_HOLDERS = re.compile(r"torch\.nn\.(?:Sequential$|DataParallel$|parallel\.)")
"""What torch puts layers into that has no weights but theirs."""


def kind_of(  # noqa: PLR0911 - one answer for each way to make one
    node: cst.BaseExpression, function: FunctionModel, depth: int = 0
) -> str | None:
    """Say whether an element is a new layer with weights or a parameter; None for neither.

    "likely" is a class of another file that has the name of one of torch's layers with weights.
    """
    if type(node) is not cst.Call or depth > _MOST_CALLS:
        return None
    scopes = function.module.scopes
    name = dotted_name(node.func) or ""
    qualified = scopes.resolve_import(name) or ""
    last = qualified.rpartition(".")[2]
    if qualified in PARAMETER_CLASSES:
        return "parameter"
    if _HOLDERS.match(qualified):
        # A layer under a name has been made before.
        inner = {kind_of(layer, function, depth) for layer in _layers(node, function)}
        return "module" if "module" in inner else "likely" if "likely" in inner else None
    if qualified.startswith("torch.nn.") and last[:1].isupper():
        has_weights = last not in WITHOUT_WEIGHTS and "Loss" not in last
        return "module" if has_weights else None
    own = scopes.classes.get(name)
    if own is not None:
        is_module = scopes.derives_from(own, "torch.nn.Module")
        return _kind_of_class(own, function, depth + 1) if is_module else None
    is_likely = f"torch.nn.{last}" in TORCH_MODULES_WITH_WEIGHTS
    if is_likely:
        return "likely"
    source = copied(node, function)
    if source is not None:
        return _kind_of_copy(source, function, depth + 1)
    return _made_by(node, function, depth + 1)


def _layers(node: cst.Call, function: FunctionModel) -> list[cst.BaseExpression]:
    """Return what is put into a Sequential or the like, also where that is a list with a name."""
    found = positional(node)
    starred = {dotted_name(argument.value) for argument in node.args if argument.star}
    for other in function.scope.nodes_of(cst.Assign, cst.AugAssign, cst.Call):
        if type(other) is cst.Assign and len(other.targets) == 1:
            if dotted_name(other.targets[0].target) in starred:
                found.extend(contents(other.value))
        elif type(other) is cst.AugAssign and dotted_name(other.target) in starred:
            found.extend(contents(other.value))
        elif (
            type(other) is cst.Call
            and type(other.func) is cst.Attribute
            and other.func.attr.value == "append"
            and dotted_name(other.func.value) in starred
        ):
            found.extend(positional(other))
    return found


def copied(node: cst.BaseExpression, function: FunctionModel) -> cst.BaseExpression | None:
    """Return what ``copy.deepcopy`` is called with, None for anything else."""
    if type(node) is not cst.Call or len(node.args) != 1:
        return None
    name = function.module.scopes.resolve_import(dotted_name(node.func) or "")
    return node.args[0].value if name == "copy.deepcopy" else None


def _kind_of_copy(source: cst.BaseExpression, function: FunctionModel, depth: int) -> str | None:
    made = assignments(function.scope).get(dotted_name(source) or "") or [source]
    kinds = {kind_of(each, function, depth) for each in made}
    return kinds.pop() if len(kinds) == 1 else None


def called_function(node: cst.BaseExpression, function: FunctionModel) -> FunctionScope | None:
    """Return the function or method of this file that is called, None for any other."""
    name = dotted_name(node.func) if type(node) is cst.Call else None
    if name is None:
        return None
    scopes, scope = function.module.scopes, function.scope
    owner, _, method = name.rpartition(".")
    called = scope.nested.get(name) or scopes.top.nested.get(name)
    if owner and owner == scope.first_parameter:
        called = scopes.method(scope.owner, method)
    return None if called is None or isinstance(called.node, cst.Module) else called


def _made_by(node: cst.Call, function: FunctionModel, depth: int) -> str | None:
    """Return what a function or method of this file returns, if it is always the same."""
    called = called_function(node, function)
    if called is None:
        made = assignments(function.scope).get(dotted_name(node.func) or "", [])
        if len(made) == 1 and type(made[0]) is cst.Lambda:
            return kind_of(made[0].body, function, depth)
        return None
    inside = function.module.function(called)
    bound = assignments(called)
    kinds: set[str | None] = set()
    for returned in returns(called):
        value = returned.value or cst.Name("None")
        sources = bound.get(dotted_name(value) or "") or [value]
        kinds.update(kind_of(source, inside, depth) for source in sources)
    return kinds.pop() if len(kinds) == 1 else None


def _kind_of_class(owner: ClassScope, function: FunctionModel, depth: int) -> str | None:
    """Say whether a class of this file makes layers with weights, or what is likely one."""
    scopes = function.module.scopes
    kinds: set[str | None] = set()
    for scope in scopes.lineage(owner):
        maker = scope.methods.get("__init__")
        if maker is None:
            continue
        inside = function.module.function(maker)
        for node in maker.nodes_of(cst.Call):
            if depth <= _MOST_CALLS:
                qualified = scopes.resolve_import(dotted_name(node.func) or "") or ""
                if qualified == "torch.nn.ModuleList":
                    continue
                kinds.add(kind_of(node, inside, depth) or kind_by_name(node, inside))
    if kinds & {"module", "parameter"}:
        return "module"
    return "likely" if "likely" in kinds else None


def kind_by_name(node: cst.BaseExpression, function: FunctionModel) -> str | None:
    """Say whether what another file makes has the name of a layer."""
    if type(node) is not cst.Call:
        return None
    scopes, name = function.module.scopes, dotted_name(node.func) or ""
    qualified, last = scopes.resolve_import(name) or "", name.rpartition(".")[2]
    own = scopes.classes.get(name)
    if own is not None:
        # Its base may be a module of another file.
        is_known = scopes.derives_from(own, "torch.") or not any(
            map(scopes.resolve_import, own.bases)
        )
        return "likely" if not is_known and _LAYER.search(last) else None
    if not qualified or qualified.startswith("torch."):
        return None
    if "nn" in qualified.split(".")[:-1] and last[:1].isupper() and node.args:
        return None if _NO_LAYER.search(last) else "likely"
    return "likely" if _LAYER.search(last) else None
