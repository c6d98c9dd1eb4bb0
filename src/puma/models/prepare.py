"""Use a model without leaving a trace in it: freeze it for a while, make a faster copy for measuring,
or take its fingerprint; and keep the processor from numbers that it is slow with.
"""

import copy
import hashlib
import operator
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

BatchNormMode = Literal["eval", "batch"]
_SAME = 1e-3  # largest difference of logits, as a share of the largest, that folding may make


@contextmanager
def frozen(model: nn.Module, batchnorm: BatchNormMode = "eval") -> Iterator[nn.Module]:
    """Within the block: eval mode, no gradient to parameters, no subnormals; afterwards every flag is as it was.

    ``batchnorm="batch"`` normalises with the statistics of the batch at hand, as in training mode, but leaves the
    running statistics alone; dropout and the like stay off. The flags are the model's own, so two threads must not use
    one model this way at the same time.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)] if batchnorm == "batch" else []
    tracking = [(norm, norm.track_running_stats) for norm in norms]
    try:
        model.eval()
        for norm in norms:
            norm.training = True
            norm.track_running_stats = False
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        with flush_subnormals():
            yield model
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for norm, flag in tracking:
            norm.track_running_stats = flag
        for module, mode in modes:
            module.training = mode


@contextmanager
def flush_subnormals(enabled: bool = True) -> Iterator[None]:
    """Within the block numbers nearer to 0 than 1e-38 count as 0 on the CPU, which is slow with them.

    Weights that only weight decay moves end there: of a public robust net a fifth, and with them it takes ten times as
    long. Threads that torch starts within the block do so for good, those that it has started before do not.
    """
    before = sys.float_info.min / 2 == 0  # torch does not tell
    torch.set_flush_denormal(enabled)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def start_threads() -> None:
    """Start torch's threads, so that they flush subnormal numbers; this one does so in ``flush_subnormals`` alone."""
    with flush_subnormals():
        torch.zeros(torch.get_num_threads() << 16).exp_()  # large enough to be shared among them


def prepare_model(model: nn.Module, example: Tensor) -> nn.Module:
    """Return a copy for measuring that gives the same logits as ``model.eval()``; the model itself is not touched.

    The copy is faster: no gradients to weights, BN folded into convolutions, channels last in memory, no subnormal
    weights. ``example`` images prove it: a copy whose logits differ is thrown away for a plainer one. A model that
    cannot be traced is copied as it is, and one that cannot even be copied is returned itself.
    """
    try:
        plain = copy.deepcopy(model).eval().requires_grad_(False)
    except Exception:  # any module may refuse to be copied, in its own way
        return model
    return _drop_subnormals(_fold_if_same(plain, example), example)


def _fold_if_same(plain: nn.Module, example: Tensor) -> nn.Module:
    """Lay a model out channels last and fold its BN, if its logits stay the same."""
    if not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules()):
        return _to_channels_last(plain)
    wanted = _compute_logits(plain, example)
    plain = _to_channels_last(plain)
    try:
        folded = fold_batchnorm(plain)
        if _are_close(_compute_logits(folded, example), wanted):
            return folded
    except Exception:  # nor does every forward survive symbolic tracing
        pass
    return plain


_EXPONENTS = {torch.float32: (torch.int32, 0xFF << 23), torch.float64: (torch.int64, 0x7FF << 52)}


def _drop_subnormals(model: nn.Module, example: Tensor) -> nn.Module:
    """Set subnormal weights to 0, which threads that do not flush them are slow with, if the logits stay the same."""
    found: list[tuple[Tensor, Tensor]] = []
    for weight in model.parameters():
        if weight.dtype in _EXPONENTS and not weight.is_inference():
            kind, exponent = _EXPONENTS[weight.dtype]
            bits = weight.detach().view(kind)  # arithmetic may take them for 0 already
            subnormal = ((bits & exponent) == 0) & (bits * 2 != 0)
            if bool(subnormal.any()):
                found.append((weight, subnormal))
    if found:
        wanted, before = _compute_logits(model, example), [values.clone() for values, _ in found]
        for values, subnormal in found:
            values.masked_fill_(subnormal, 0)
        if not gives_same_logits(model, example, wanted):
            for (values, _), kept in zip(found, before, strict=True):
                values.copy_(kept)
    return model


def _to_channels_last(model: nn.Module) -> nn.Module:
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # absent from torch's stubs
    return model


def fold_batchnorm(model: nn.Module) -> nn.Module:
    """Return a traced copy in which every BN that alone follows a convolution is folded into it.

    A model without such a pair is returned itself: tracing would gain nothing.
    """
    traced = fx.symbolic_trace(model)
    uses = Counter(node.target for node in traced.graph.nodes if node.op == "call_module")
    modules = dict(traced.named_modules())
    pairs = [node for node in traced.graph.nodes if _can_fold(node, modules, uses)]
    if not pairs:
        return model
    for node in pairs:
        before = node.args[0]
        fused = fuse_conv_bn_eval(modules[before.target], modules[node.target])
        parent, _, name = before.target.rpartition(".")
        setattr(operator.attrgetter(parent)(traced) if parent else traced, name, fused)
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced.requires_grad_(False)


def _can_fold(node: fx.Node, modules: dict[str, nn.Module], uses: Counter[object]) -> bool:
    if node.op != "call_module" or not isinstance(modules[str(node.target)], nn.BatchNorm2d):
        return False
    before = node.args[0]
    return (
        isinstance(before, fx.Node)
        and before.op == "call_module"
        and isinstance(modules[str(before.target)], nn.Conv2d)
        and len(before.users) == 1
        and uses[before.target] == uses[node.target] == 1
        and bool(modules[str(node.target)].track_running_stats)
    )


@torch.no_grad()
def _compute_logits(model: nn.Module, images: Tensor) -> Tensor:
    logits: Tensor = model(images)
    return logits


def gives_same_logits(model: nn.Module, images: Tensor, wanted: Tensor) -> bool:
    """Whether a copy of a model answers as the model does, but for what folding may change."""
    try:
        return _are_close(_compute_logits(model, images), wanted)
    except Exception:  # such as another number of classes
        return False


def _are_close(ours: Tensor, theirs: Tensor) -> bool:
    scale = theirs.abs().amax().clamp_min(torch.finfo(theirs.dtype).tiny)
    return bool(((ours - theirs).abs() <= _SAME * scale).all())


_PROBES = 2  # images: one could be mapped to a constant by chance, more cost a large net seconds
_DIGITS = 1e-6  # answers are rounded to this share of the largest; float64 differs by 1e-12 between machines
_COARSE_DIGITS = 1e-2  # for a model that cannot compute in float64


def fingerprint_model(model: nn.Module, image_shape: tuple[int, int, int]) -> str:
    """Hash the architecture as printed, every parameter and buffer, and the logits of two fixed images.

    ``image_shape`` is (height, width, channels), as pools have it. The answers tell apart models of equal weights whose
    ``forward`` differs. They are computed in float64 on the CPU and rounded, so the hash does not depend on the
    device; the model itself is not touched.
    """
    digest = hashlib.sha256(str(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, Tensor):  # a module's extra state
            digest.update(f"{name} {tensor!r}".encode())
            continue
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.view(-1).view(torch.uint8).numpy().tobytes() if values.numel() else b"")
    digest.update(_hash_answers(model, image_shape))
    return digest.hexdigest()


def _hash_answers(model: nn.Module, image_shape: tuple[int, int, int]) -> bytes:
    height, width, channels = image_shape
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((_PROBES, channels, height, width), generator=generator, dtype=torch.float64)
    for dtype, digits in ((torch.float64, _DIGITS), (torch.float32, _COARSE_DIGITS)):
        try:
            answers = _answer(model, images.to(dtype))
        except Exception:  # any module may refuse a copy, a dtype or these images, in its own way
            continue
        scale = float(answers.abs().nan_to_num(0, 0, 0).max()) or 1.0
        return (answers / (digits * scale)).nan_to_num(0, 0, 0).round().to(torch.int64).numpy().tobytes()
    return b"no answer"


@torch.no_grad()
def _answer(model: nn.Module, images: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        answers: Tensor = copy.deepcopy(model).cpu().to(images.dtype).eval()(images)
    return answers.double().cpu()
