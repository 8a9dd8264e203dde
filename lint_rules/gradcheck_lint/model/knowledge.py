"""Name what torch's own functions and methods do to gradients."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


INPLACE_METHODS: Final = words(
    """
    abs_ absolute_ acos_ acosh_ add_ addbmm_ addcdiv_ addcmul_ addmm_ addmv_ addr_ arccos_
    arccosh_ arcsin_ arcsinh_ arctan2_ arctan_ arctanh_ as_strided_ asin_ asinh_ atan2_ atan_
    atanh_ baddbmm_ bernoulli_ bitwise_and_ bitwise_left_shift_ bitwise_not_ bitwise_or_
    bitwise_right_shift_ bitwise_xor_ cauchy_ ceil_ clamp_ clamp_max_ clamp_min_ clip_
    conj_physical_ copy_ copysign_ cos_ cosh_ cumprod_ cumsum_ deg2rad_ digamma_ div_ divide_
    eq_ erf_ erfc_ erfinv_ exp2_ exp_ expm1_ exponential_ fill_ fill_diagonal_ fix_
    float_power_ floor_ floor_divide_ fmod_ frac_ gcd_ ge_ geometric_ greater_ greater_equal_
    gt_ heaviside_ hypot_ i0_ igamma_ igammac_ index_add_ index_copy_ index_fill_ index_put_
    index_reduce_ lcm_ ldexp_ le_ lerp_ less_ less_equal_ lgamma_ log10_ log1p_ log2_ log_
    log_normal_ logit_ lt_ masked_fill_ masked_scatter_ mul_ multiply_ mvlgamma_ nan_to_num_
    ne_ neg_ negative_ nextafter_ normal_ not_equal_ polygamma_ pow_ put_ rad2deg_ random_
    reciprocal_ relu_ remainder_ renorm_ round_ rsqrt_ scatter_ scatter_add_ scatter_reduce_
    set_ sgn_ sigmoid_ sign_ sin_ sinc_ sinh_ sqrt_ square_ squeeze_ sub_ subtract_ swapaxes_
    swapdims_ t_ tan_ tanh_ transpose_ tril_ triu_ true_divide_ trunc_ uniform_ unsqueeze_
    xlogy_ zero_
    """
)
"""Methods that raise on a leaf that requires grad while gradients are recorded (tried one by one
on torch 2.13). ``requires_grad_``, ``detach_``, ``share_memory_`` and the ``logical_*_`` methods
do not, and ``@=`` makes a new tensor."""

SCALED: Final = "scaled"
"""The name of a value that a gradient scaler has multiplied."""

SETTINGS: Final = "settings"
"""The name of a value that holds what the command line says, whatever it is called."""

FACTORIES: Final = frozenset(
    f"torch.{name}"
    for name in words(
        """
    arange empty empty_like empty_strided eye full full_like linspace logspace normal ones
    ones_like rand rand_like randint randint_like randn randn_like randperm tensor zeros
    zeros_like Tensor FloatTensor DoubleTensor from_numpy as_tensor
    """
    )
)
"""Functions whose result has no graph; ``requires_grad=True`` makes it a leaf."""

MAY_KEEP_THE_GRAPH: Final = frozenset({"torch.as_tensor", "torch.normal", "torch.Tensor"})
"""Factories that hand an argument's own graph on, or may do so."""

PARAMETER_CLASSES: Final = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
VARIABLE_CLASSES: Final = frozenset({"torch.autograd.Variable", "torch.autograd.variable.Variable"})

VIEW_METHODS: Final = words(
    """
    view view_as t transpose permute squeeze unsqueeze expand expand_as narrow select diagonal
    movedim moveaxis swapaxes swapdims adjoint
    """
)
MAYBE_ITSELF_METHODS: Final = words(
    """
    to cuda cpu float double half bfloat16 contiguous type_as type reshape reshape_as flatten
    requires_grad_ ravel
    """
)
"""Methods that return the tensor itself, or a view of it, where there is nothing to change."""

VIEW_ATTRIBUTES: Final = frozenset({"T", "mT", "H", "mH"})

SAME_GRAPH_METHODS: Final = words(
    """
    mean sum clone squeeze unsqueeze view view_as reshape flatten to cuda cpu float double
    half bfloat16 contiguous type_as neg abs sqrt log exp square pow t transpose permute
    expand sigmoid tanh softmax log_softmax relu rsqrt reciprocal expm1 log1p sin cos norm
    flip fliplr flipud cumsum cumprod roll tril triu logsumexp std var prod amax amin
    """
)
"""Methods of one tensor whose result has a graph exactly if that tensor has one."""

SCALAR_METHODS: Final = frozenset(
    {"item", "tolist", "numpy", "size", "dim", "numel", "argmax", "argmin"}
)
CUTTING_METHODS: Final = frozenset({"item", "tolist", "numpy", "argmax", "argmin"})
"""Methods whose result has no graph whatever it is called on."""

SCALAR_ATTRIBUTES: Final = frozenset(
    {"shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "grad_fn", "is_leaf"}
)

KEPT_MODULE_METHODS: Final = words(
    """
    train eval parameters named_parameters buffers named_buffers children named_children
    modules named_modules state_dict load_state_dict to cuda cpu half float double bfloat16
    forward requires_grad_ register_forward_hook register_buffer share_memory get_parameter
    step param_groups no_sync keys values items get size get_last_lr is_alive copy
    reset_parameters init_weights to_empty unshard reshard compile print_trainable_parameters
    """
)
"""Methods of modules and optimizers that neither clear gradients nor hand the object on."""

SAME_MODULE_METHODS: Final = words(
    "to cuda cpu half float double bfloat16 requires_grad_ share_memory apply"
)
"""Methods of modules that return the module itself."""

TORCH_MODULES_WITH_WEIGHTS: Final = frozenset(
    f"torch.nn.{name}"
    for name in words(
        """
    Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
    Embedding EmbeddingBag LayerNorm BatchNorm1d BatchNorm2d BatchNorm3d GroupNorm
    """
    )
)

SAVES_INPUT: Final = words(
    """
    pow square sin cos sinh cosh log log2 log10 log1p abs clamp norm prod var std cumprod
    logsumexp softplus gelu silu mish leaky_relu hardtanh hardswish relu6 celu elu selu asin acos
    atan atanh erf lgamma digamma logsigmoid hardsigmoid softsign nan_to_num logit sinc
    """
)
"""Operations of one tensor that save it if it requires a gradient."""

SAVING_LAYERS: Final = words(
    """
    Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LayerNorm
    GroupNorm BatchNorm1d BatchNorm2d BatchNorm3d
    """
)
"""Layers that save their input for the gradient of their weights."""

GRAPHLESS_METHODS: Final = words(
    """
    argsort bool byte char eq equal ge gt int isclose isfinite isinf isnan le logical_and
    logical_not logical_or long lt ne nonzero short
    """
)
"""Methods whose result is made of integers or truths, which have no graph."""

TENSOR_METHODS: Final = words(
    """
    all allclose amax amin any argmin argsort bmm bool byte ceil char chunk clamp clamp_max
    clamp_min clip cross cummax cummin cumprod cumsum dist div dot eq equal expm1 fill flip
    floor fmod gather ge gt index_add index_copy index_fill index_select int isclose isfinite
    isinf isnan kthvalue le lerp log1p log2 log_softmax logical_and logical_not logical_or
    logsumexp long lt masked_fill masked_scatter masked_select matmul max maximum median min
    minimum mm mul multinomial mv ne new_empty new_full new_ones new_tensor new_zeros nonzero
    norm numpy outer pin_memory pow prod remainder repeat repeat_interleave roll round rsqrt
    scatter scatter_add short sigmoid sign softmax sort split std sub take tanh tensor_split
    topk type unbind unfold unique var where
    """
)
"""More methods that tensors have, and that are handed no model to change."""

OWNER_METHODS: Final = words(
    """
    children eval forward load_state_dict modules named_children named_modules
    named_parameters no_sync parameters state_dict train
    """
)
"""Methods whose receiver owns parameters."""

GRAD_MODE_CONTEXTS: Final = {
    "no_grad": False,
    "inference_mode": False,
    "enable_grad": True,
    "set_grad_enabled": True,
}

HARMLESS_PACKAGES: Final = words(
    """
    apex argparse collections contextlib copy csv dataclasses datetime functools gc gym
    gymnasium io itertools json logging math matplotlib numpy operator os pandas pathlib
    pickle pprint psutil random re scipy shutil sklearn statistics sys tensorboard
    tensorboardX threading time torch torchmetrics torchvision tqdm typing wandb warnings yaml
    """
)
"""Packages whose functions leave the gradients of what they are handed alone."""

ENGINE_PACKAGES: Final = words(
    """
    catalyst colossalai composer deepspeed fastai ignite lightning poptorch pytorch_lightning
    skorch
    """
)
ENGINE_MODULES: Final = frozenset(
    {"torch.distributed.autograd", "torch.distributed.rpc", "transformers.Trainer"}
)
"""Whoever imports one of these lets it decide when gradients are cleared."""

BACKWARD_BY_ENGINE: Final = re.compile(r"accelerat|fabric")
"""The names of objects whose ``backward(loss)`` is that of the loss, and no more.

Accelerate and Fabric leave zeroing and stepping to the loop, as torch does.
"""

HARMLESS_BUILTINS: Final = words(
    """
    abs all any bool dict dir divmod enumerate filter float format getattr hasattr hash id int
    isinstance issubclass iter len list map max min next print range repr reversed round set
    sorted str sum tuple type vars zip super open
    """
)

_HOLDER_NAME = re.compile(
    r"model|net(?![a-z])|network|module|critic|actor|policy|generator|discriminator|optim|(?:^|_)opt(?:$|_)"
)
_HELD_DATA_NAME = re.compile(
    r"_(?:states?|actions?|loss(?:es)?|out(?:puts?)?|inputs?|logits?|pred(?:s|ictions?)?|batch(?:es)?"
    r"|names?|path|dir|file|dim|size|lr|args|config|cfg|kwargs|type|ids?|time|steps?|freq|data)$"
)


@lru_cache(maxsize=4096)
def names_holder(name: str) -> bool:
    """Tell by its name whether something is a model or an optimizer, or owns one."""
    last = name.lower()
    return bool(_HOLDER_NAME.search(last)) and not _HELD_DATA_NAME.search(last)
