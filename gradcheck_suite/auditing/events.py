"""What a training loop did, in order: the stream that every detector reads.

Events arrive in the order in which things happened, on the thread on which they happened, and from
inside the call that they tell of. They are small and frozen, and valid while they are handled: a
detector that keeps a tensor, a module or an optimizer of one keeps it alive, so it keeps
``weakref.ref(...)``, or copies what it needs.

A detector that has nothing to wait for among the events of a kind lets its handler return
``Attention.ASLEEP``, and is not told of them until one of its handlers returns
``Attention.AWAKE``: most of what could go wrong takes a call that most loops never make. One that
looks at a few turns only returns the next one. Everybody is awake again when an optimizer appears.

A detector subscribes to kinds of events. What nobody subscribes to is not even watched for, so that
an audit costs what its detectors ask for. ``site`` is always the user's innermost line, or None.

=========================  ======================================================================
event                      fires
=========================  ======================================================================
OptimizerConstructed       after ``Optimizer.__init__``, for any subclass that calls it
NonLeafRefused             when an optimizer refuses a tensor that an operation has made
ParameterGroupAdded        after ``add_param_group``, outside of the constructor
GradientsCleared           after ``optimizer.zero_grad()`` or ``module.zero_grad()``
StepStarted, StepFinished  around ``optimizer.step()``; finished only without an exception
StepMarked                 at ``session.step()``
BackwardStarted            before an outermost ``backward()`` or ``autograd.grad()``
BackwardFailed             after one that an exception has ended
BackwardFinished           after it, also if it failed
GradientsAskedInside       before an ``autograd.grad`` in the backward of a custom Function
GradientsReturned          after BackwardFinished, if that was an ``autograd.grad``
GraphReused                after BackwardStarted, if its graph reaches that of an earlier backward
LeafBackwardStarted        after BackwardStarted, if it starts from a leaf
LossGivenAsGradient        after BackwardStarted, if a loss is given as its own gradient
GradientsFound             after BackwardStarted, if any parameter has a gradient already
GraphKept                  after BackwardFinished, if that has left a graph behind
GradientsDiscarded         after GradientsCleared, if what is lost by it was used by no step
StepSummarized             after StepFinished, if anything but backwards came before the step
GradientsClipped           after ``clip_grad_norm_``, ``clip_grad_value_`` and their parts
LossScaled                 after ``GradScaler.scale(...)``, once for each outermost call
GradientsUnscaled          after ``GradScaler.unscale_(optimizer)``; one that raises says so
ScalerStepped              after ``GradScaler.step(optimizer)``
ScalerUpdated              after ``GradScaler.update()``
OptimizerStateLoaded       after ``optimizer.load_state_dict(...)``
SchedulerStepped           after ``scheduler.step()``; not for the one in its constructor
SchedulerStateLoaded       after the outermost ``scheduler.load_state_dict(...)``
ModeChanged                after the outermost ``module.train(...)`` or ``module.eval()``
ForwardHookRegistered      after ``module.register_forward_hook(...)``
ModuleConverted            after ``module.to(...)`` and the like
ForwardFinished            after the outermost call of a module, in the first 8 steps
DropoutRanInEval           before functional dropout that is on in a module in evaluation mode
RecomputedDifferently      before a checkpoint runs again in backward, not as it ran in forward
LegacyFunctionCalled       before torch refuses to call an instance of an ``autograd.Function``
NonLeafGradientRead        when torch warns that ``.grad`` of such a tensor is read
TorchWarned                at any other warning that is shown, recorded or logged
AutocastEntered            when autocast is entered where it was off
GeneratorSet               after ``manual_seed`` and ``set_rng_state`` of torch's own generator
GradModeChanged            at ``no_grad``, ``inference_mode``, ``enable_grad``, ``set_grad_enabled``
StateTaken                 after the outermost ``module.state_dict()``
StateSaved                 after ``torch.save()``
LoadStarted                before the outermost ``module.load_state_dict(...)``
StateLoaded                after the outermost ``module.load_state_dict(...)`` that did not raise
CopiedOntoItself           after ``copy_`` from the very memory that it writes
Written                    after an in-place call outside ``optimizer.step()``
ComputedWeightWritten      after one that sets all of a weight that torch computes from others,
                           in the first 8 steps and in no call of a module
IndexedAssigned            after a slice or element of a tensor that requires grad was assigned to
WriteRefused               when torch refuses an in-place call (a leaf that requires grad)
SavedTensorModified        at the use, inside backward, of a saved tensor whose version has moved
SavedTensorCorrupted       at the use of one whose contents differ while its version does not
WatchResumed               when steps that were passed over have gone before
SessionEnded               when the audit is left; more may follow if it is entered again
=========================  ======================================================================

A step of ``recorder.step`` is a finished ``optimizer.step()`` of any optimizer, until the program
calls ``session.step()``: then those alone count. Writes before a moment are asked of
``recorder.write_log.since``, saved tensors come with the ``Moment`` at which they were saved, and
``recorder.optimizers`` knows which optimizers own a parameter, ``recorder.schedules`` which
schedulers were never stepped, in steps that were passed over as well.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn
    from torch.amp import GradScaler
    from torch.autograd.graph import Node
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.optim import Optimizer

    from gradcheck_suite._torch_compat import Following
    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.saved_tensors.saved_tensor import PackedTensor
    from gradcheck_suite.findings import Finding

__all__ = [
    "Attention",
    "AutocastEntered",
    "BackwardFailed",
    "BackwardFinished",
    "BackwardStarted",
    "ComputedWeightWritten",
    "CopiedOntoItself",
    "Detector",
    "DropoutRanInEval",
    "Event",
    "ForwardFinished",
    "ForwardHookRegistered",
    "GeneratorSet",
    "GradModeChanged",
    "GradientsAskedInside",
    "GradientsCleared",
    "GradientsClipped",
    "GradientsDiscarded",
    "GradientsFound",
    "GradientsReturned",
    "GradientsUnscaled",
    "GraphKept",
    "GraphReused",
    "Handler",
    "IndexedAssigned",
    "LeafBackwardStarted",
    "LegacyFunctionCalled",
    "LoadStarted",
    "LossGivenAsGradient",
    "LossScaled",
    "ModeChanged",
    "ModuleConverted",
    "NonLeafGradientRead",
    "NonLeafRefused",
    "OptimizerConstructed",
    "OptimizerStateLoaded",
    "ParameterGroupAdded",
    "RecomputedDifferently",
    "SavedTensorCorrupted",
    "SavedTensorModified",
    "ScalerStepped",
    "ScalerUpdated",
    "SchedulerStateLoaded",
    "SchedulerStepped",
    "SessionEnded",
    "StateLoaded",
    "StateSaved",
    "StateTaken",
    "StepFinished",
    "StepMarked",
    "StepStarted",
    "StepSummarized",
    "Subscriptions",
    "TorchWarned",
    "WatchResumed",
    "WriteRefused",
    "Written",
]


class OptimizerConstructed(NamedTuple):
    """An optimizer has been made."""

    optimizer: Optimizer
    site: CallSite | None


class NonLeafRefused(NamedTuple):
    """An optimizer was given a tensor that has a graph, and has raised."""

    optimizer: str
    site: CallSite | None


class ParameterGroupAdded(NamedTuple):
    """An optimizer was given another group, its last now."""

    optimizer: Optimizer
    site: CallSite | None


class OptimizerStateLoaded(NamedTuple):
    """An optimizer was given a state, whose tensors it does not copy where they fit."""

    optimizer: Optimizer
    site: CallSite | None


class GradientsCleared(NamedTuple):
    """The gradients of an optimizer's or a module's parameters were set to None or to zero."""

    owner: Optimizer | nn.Module
    set_to_none: bool
    site: CallSite | None


class BackwardStarted(NamedTuple):
    """An outermost backward or ``autograd.grad`` is about to run.

    Attributes:
        number: counts these from 0.
        site: where it was called.
        chain: how many earlier backwards, each through the graph of the one before, this graph
            goes back through, as far as it was looked at; 0 for a graph of its own.
        roots: what it starts from.
        accumulates: whether it adds to ``.grad`` (``backward``), or returns gradients.
        found_out: what a detector has worked out of the roots, for those that ask after it.
        following: what some of the nodes below the roots lead to, while detectors are told.
    """

    number: int
    site: CallSite | None
    chain: int
    roots: tuple[Tensor, ...]
    accumulates: bool
    found_out: dict[object, Any]
    following: dict[Node, Following]


class BackwardFinished(NamedTuple):
    """That backward has ended.

    Attributes:
        number: as in ``BackwardStarted``.
        site: where it was called.
        creates_graph: whether it recorded a graph of its own.
        failed: whether an exception ended it.
        keeps_graph: whether the graph can be gone through again (``retain_graph``).
        created: the parameters of known optimizers, and of the audited model, whose ``.grad`` is
            another tensor than before, or is one now.
        accumulated: those of them whose ``.grad`` was added to in place.
    """

    number: int
    site: CallSite | None
    creates_graph: bool
    failed: bool
    keeps_graph: bool
    created: tuple[Tensor, ...]
    accumulated: tuple[Tensor, ...]


class GradientsReturned(NamedTuple):
    """An ``autograd.grad`` has ended without an exception, and is about to return ``gradients``."""

    finished: BackwardFinished
    gradients: tuple[Tensor | None, ...]


class GradientsAskedInside(NamedTuple):
    """The backward of a custom Function is about to call ``autograd.grad``.

    Attributes:
        node: that of the Function.
        function: the Function.
        roots: what that ``autograd.grad`` starts from.
        inputs: what it asks the gradients of.
        site: where it is called.
    """

    node: Node
    function: type
    roots: tuple[Tensor, ...]
    inputs: tuple[Any, ...]
    site: CallSite | None


class GraphReused(NamedTuple):
    """The graph of a backward that is about to run reaches one that an earlier one went through."""

    started: BackwardStarted


class LossGivenAsGradient(NamedTuple):
    """A backward is about to run whose root, of one element, is given as its own gradient."""

    started: BackwardStarted


class LeafBackwardStarted(NamedTuple):
    """A backward that is about to run starts from something that no operation has made."""

    started: BackwardStarted


class GradientsFound(NamedTuple):
    """A parameter of a known optimizer has a gradient already, as a backward is about to run."""

    started: BackwardStarted


class GraphKept(NamedTuple):
    """A backward has ended without an exception, and its graph, or one of its own, is left."""

    finished: BackwardFinished


class BackwardFailed(NamedTuple):
    """That backward has ended with ``error``; comes before ``BackwardFinished``."""

    number: int
    site: CallSite | None
    roots: tuple[Tensor, ...]
    error: BaseException


class StepStarted(NamedTuple):
    """An optimizer's ``step()`` has begun. ``number`` counts finished steps.

    Where it may have been given a closure, that may yet fill the gradients that it uses.
    """

    number: int
    optimizer: Optimizer
    site: CallSite | None
    has_closure: bool = False


class StepFinished(NamedTuple):
    """An optimizer's ``step()`` has ended, without an exception."""

    number: int
    optimizer: Optimizer
    site: CallSite | None


class StepSummarized(NamedTuple):
    """An optimizer has stepped, and its accumulation window is not the usual one.

    The usual one begins where the last was seen to end, and backwards fill gradients in it, all of
    which the step has used. The first of an optimizer is told of in any case, and one that somebody
    follows.
    """

    step: StepFinished


class GradientsDiscarded(NamedTuple):
    """What backwards had filled the gradients of an optimizer with is lost, and no step used it."""

    site: CallSite | None


class StepMarked(NamedTuple):
    """The program has said that step ``number`` is done."""

    number: int
    site: CallSite | None


class GradientsClipped(NamedTuple):
    """Gradients were clipped.

    Attributes:
        function: the function of ``torch.nn.utils``.
        gradients: what was clipped; empty for an exhausted iterator, or before any backward.
        parameters: how many parameters were given; None where only their gradients are known.
        site: where it was called.
        given: these parameters, as far as they are known.
        limit: the greatest norm allowed, if it is a plain number.
        refused: whether torch has raised.
    """

    function: Literal["clip_grad_norm_", "clip_grad_value_"]
    gradients: tuple[Tensor, ...]
    parameters: int | None
    site: CallSite | None
    given: tuple[Tensor, ...] = ()
    limit: float | None = None
    refused: bool = False


class LossScaled(NamedTuple):
    """A GradScaler has multiplied something by its scale; ``scaler`` may be switched off."""

    scaler: GradScaler
    result: Any
    site: CallSite | None


class GradientsUnscaled(NamedTuple):
    """A GradScaler was asked to divide an optimizer's gradients; ``failed``: it refused."""

    scaler: GradScaler
    optimizer: Optimizer
    failed: bool
    site: CallSite | None


class ScalerStepped(NamedTuple):
    """A GradScaler was asked to step an optimizer; ``stepped`` says whether that one did."""

    scaler: GradScaler
    optimizer: Optimizer
    stepped: bool
    failed: bool
    site: CallSite | None


class ScalerUpdated(NamedTuple):
    """A GradScaler was asked for its next scale."""

    scaler: GradScaler
    failed: bool
    site: CallSite | None


class SchedulerStepped(NamedTuple):
    """A learning-rate scheduler has stepped. ``optimizer`` is None where it names none."""

    scheduler: Any
    optimizer: Optimizer | None
    site: CallSite | None


class SchedulerStateLoaded(NamedTuple):
    """A learning-rate scheduler was given a state, which leaves the optimizer's rates as they are.

    Attributes:
        scheduler: what was given it.
        optimizer: whose rates it sets.
        before: the rates that the scheduler had set last, until then.
        site: where.
    """

    scheduler: Any
    optimizer: Optimizer
    before: tuple[Any, ...]
    site: CallSite | None


class NonLeafGradientRead(NamedTuple):
    """The user's code has read ``.grad`` of a tensor that has a graph and does not retain it."""

    site: CallSite


class TorchWarned(NamedTuple):
    """A warning has passed the program's filters, of torch or of anyone else.

    Attributes:
        text: its words.
        from_torch: whether torch is seen to have raised it; some of its code can't be seen.
        site: the innermost place in the user's code.
    """

    text: str
    from_torch: bool
    site: CallSite | None


class DropoutRanInEval(NamedTuple):
    """Functional dropout is on, and the module that calls it is in evaluation mode.

    ``is_given``: whether the call says ``training=...``.
    """

    function: str
    module: nn.Module
    is_given: bool
    site: CallSite | None


class RecomputedDifferently(NamedTuple):
    """A checkpointed function runs again in backward, and not as it ran in forward.

    ``drawn``: whose random numbers it had drawn and now draws others of; ``mode_changed``: whether
    modules are in another mode; ``parameters_changed``: how many were written since; ``buffers``:
    the modules some of whose buffers both runs have written to, which is told after the second.
    """

    drawn: tuple[str, ...]
    mode_changed: bool
    parameters_changed: int
    site: CallSite | None
    buffers: tuple[str, ...] = ()


class LegacyFunctionCalled(NamedTuple):
    """An instance of a custom Function is called, as in old torch; this one refuses."""

    function: type
    site: CallSite | None


class ModeChanged(NamedTuple):
    """A module and its children were set to training or evaluation mode; ``before``: it was.

    Those of ``turned_on`` were set to training mode inside of a call that sets to evaluation mode.
    """

    module: nn.Module
    training: bool
    site: CallSite | None
    before: bool | None = None
    turned_on: tuple[nn.Module, ...] = ()


class ForwardHookRegistered(NamedTuple):
    """A function is called with what ``module`` returns, from now on."""

    module: nn.Module
    hook: Callable[..., object]


class ModuleConverted(NamedTuple):
    """The parameters of ``module`` were given another type, or moved to another device."""

    module: nn.Module
    site: CallSite | None


class ForwardFinished(NamedTuple):
    """The outermost call of a module with the arguments ``given`` has returned ``output``."""

    module: nn.Module
    output: Any
    grad_enabled: bool
    inference: bool
    site: CallSite | None
    given: tuple[Any, ...] = ()


class AutocastEntered(NamedTuple):
    """Autocast is on from here, for this type of device; it was off before."""

    device: str
    site: CallSite | None


class GradModeChanged(NamedTuple):
    """Grad mode was entered, left or set; ``enabled`` is what holds from here on."""

    kind: Literal["no_grad", "enable_grad", "inference_mode", "set_grad_enabled"]
    entered: bool
    enabled: bool
    site: CallSite | None


class StateTaken(NamedTuple):
    """A module has given out its state, whose tensors share the memory of its own."""

    module: nn.Module
    state: Mapping[str, Any]
    site: CallSite | None


class StateSaved(NamedTuple):
    """Something was written by ``torch.save``."""

    saved: object
    site: CallSite | None


class GeneratorSet(NamedTuple):
    """Torch's own generator was given a seed, or a state: ``seed`` is None then."""

    seed: int | None
    site: CallSite | None


class LoadStarted(NamedTuple):
    """``module.load_state_dict()`` was called, and has loaded nothing yet."""

    module: nn.Module
    site: CallSite | None


class StateLoaded(NamedTuple):
    """A module was given a state, of whose entries those were taken that fit.

    Attributes:
        module: what was loaded into.
        given: how many entries the state has.
        missing: the names that the module has and the state has not.
        unexpected: the names that the state has and the module has not.
        site: where it was called.
    """

    module: nn.Module
    given: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    site: CallSite | None


class CopiedOntoItself(NamedTuple):
    """A tensor was copied onto memory that is its own, so that nothing has changed."""

    target: Tensor
    source: Tensor
    site: CallSite | None


class Written(NamedTuple):
    """An in-place function has written into ``tensor``."""

    tensor: Tensor
    operation: str
    sequence: int
    site: CallSite | None


class ComputedWeightWritten(NamedTuple):
    """An in-place function has set all of a weight that torch computes anew at each use.

    Attributes:
        memory: tells whether anything has what was written.
        computed_by: what computes it, as ``weight_norm``.
        operation: the in-place function.
        site: where.
    """

    memory: StorageWeakRef
    computed_by: str
    operation: str
    site: CallSite | None


class IndexedAssigned(NamedTuple):
    """A slice or element of a tensor that requires grad was assigned to."""

    tensor: Tensor
    site: CallSite | None


class WriteRefused(NamedTuple):
    """Torch has refused an in-place call with ``error``, which follows."""

    tensor: object
    operation: str
    error: RuntimeError
    site: CallSite | None


class SavedTensorModified(NamedTuple):
    """Backward asked for a saved tensor whose version counter has moved; torch's error follows.

    ``node`` is the backward node that saved it, ``producer`` the op that had made it then.
    """

    packed: PackedTensor
    step: int
    node: str | None
    producer: str | None
    version: int
    site: CallSite | None


class SavedTensorCorrupted(NamedTuple):
    """Backward used a saved tensor whose contents differ while its version counter does not.

    ``change`` says whether the contents of its memory changed, or whether the tensor was given
    other memory (``tensor.data = ...``).
    """

    packed: PackedTensor
    step: int
    node: str | None
    producer: str | None
    change: Literal["content", "memory"]
    site: CallSite | None


class WatchResumed(NamedTuple):
    """Steps have gone by that nobody was told of: what the last one had left no longer holds."""


class SessionEnded(NamedTuple):
    """The audit is over; ``error`` is the exception that ended it, if one did."""

    error: BaseException | None


Event: TypeAlias = (
    OptimizerConstructed
    | ParameterGroupAdded
    | OptimizerStateLoaded
    | GradientsCleared
    | BackwardStarted
    | BackwardFailed
    | BackwardFinished
    | GradientsReturned
    | GradientsAskedInside
    | GraphReused
    | LeafBackwardStarted
    | LossGivenAsGradient
    | GradientsFound
    | GraphKept
    | StepStarted
    | StepFinished
    | StepSummarized
    | GradientsDiscarded
    | StepMarked
    | GradientsClipped
    | LossScaled
    | GradientsUnscaled
    | ScalerStepped
    | ScalerUpdated
    | SchedulerStateLoaded
    | SchedulerStepped
    | ModeChanged
    | ForwardFinished
    | ForwardHookRegistered
    | ModuleConverted
    | LegacyFunctionCalled
    | NonLeafGradientRead
    | TorchWarned
    | NonLeafRefused
    | AutocastEntered
    | DropoutRanInEval
    | RecomputedDifferently
    | GeneratorSet
    | GradModeChanged
    | StateTaken
    | StateSaved
    | LoadStarted
    | StateLoaded
    | CopiedOntoItself
    | Written
    | ComputedWeightWritten
    | IndexedAssigned
    | WriteRefused
    | SavedTensorModified
    | SavedTensorCorrupted
    | WatchResumed
    | SessionEnded
)


class Attention(Enum):
    """What a handler may ask for.

    Attributes:
        ASLEEP: not to be called for this kind of event, until its detector is woken.
        AWAKE: to call all handlers of this detector again.
    """

    ASLEEP = "asleep"
    AWAKE = "awake"


Handler: TypeAlias = "Callable[[Any], Attention | int | None]"
"""What is called for an event. A number asks to be called for none of this kind before that turn of
the recorder's."""

Subscriptions: TypeAlias = "Mapping[type[Any], Handler]"
"""What handles each kind of event."""


class Detector(Protocol):
    """Reads the stream and says what was wrong."""

    def subscriptions(self) -> Subscriptions:
        """Return what to call for each kind of event that this detector reads.

        It is asked each time that the audit begins. For one event, the detectors are called in
        the order in which they were made.
        """
        ...

    def findings(self) -> Sequence[Finding]:
        """Return what is certain by now."""
        ...

    # Four more are asked for where a detector has them: ``not_covered() -> list[str]``, what it
    # could not look at; ``is_following() -> bool``, whether it is at something that the steps
    # to come have a part in, so that none may be passed over; and ``findings_beside(found)``, what
    # it tells beside the findings of those before it, in place of ``findings()``; and
    # ``put_back()``, which takes away what it has replaced, however the audit ends.
