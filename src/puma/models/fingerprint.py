"""One hash that tells two models apart: what they are printed as, their weights, and what they answer."""

import copy
import hashlib

import torch
from torch import Tensor, nn

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
