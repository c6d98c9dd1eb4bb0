"""Clean accuracy and the PGD attacks: which samples stay right."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from puma.attacks import pgd
from puma.attacks.validation import check_labels_fit
from puma.errors import PumaError
from puma.evaluation.state import State
from puma.evaluation.subject import Subject
from puma.progress import progress_bar

STEPS_PER_RADIUS = 4  # a step is a quarter of the radius: 2/255 at 8/255


@dataclass(frozen=True)
class GradientAttack:
    """PGD from a uniform start, steps of a quarter of the radius; the last iterate counts."""

    loss: str
    steps: int


GRADIENT_ATTACKS = {
    "cw": GradientAttack("cw", 40),
    "pgd20": GradientAttack("ce", 20),
}


def clean_right(subject: Subject, state: State, *, show: bool = False) -> Tensor:
    """Return which samples (n,) the model gets right."""
    stored = state.get("clean")
    if stored is not None:
        return stored[0]
    right = torch.zeros(subject.count, dtype=torch.bool)
    with progress_bar("clean", subject.count, enabled=show) as advance:
        for positions, images, labels in subject.batches(subject.everything()):
            right[positions] = predicted_right(subject, images, labels)
            advance(len(positions))
    state.put("clean", right, subject.count)
    return right


def right_under(
    name: str,
    attack: GradientAttack,
    subject: Subject,
    before: Tensor,
    eps: float,
    state: State,
    *,
    norm: str = "linf",
    seed: int = 0,
    show: bool = False,
) -> Tensor:
    """Return which of the samples that were right ``before`` stay right under an attack; the others are not run."""
    flags, done = state.get(name) or (before.clone(), 0)
    candidates = before.nonzero().squeeze(1)
    with progress_bar(name, len(candidates) - done, enabled=show) as advance:
        for positions, images, labels in subject.batches(candidates[done:]):
            generator = Generator(images.device).manual_seed(seed * 1_000_003 + int(positions[0]))
            attacked = pgd(
                subject.model,
                images,
                labels,
                eps,
                step_size=max(eps / STEPS_PER_RADIUS, 1e-12),
                steps=attack.steps,
                loss=attack.loss,
                norm=norm,
                generator=generator,
            )
            flags[positions] = predicted_right(subject, attacked, labels)
            done += len(positions)
            state.put(name, flags, done)
            advance(len(positions))
    return flags


@torch.inference_mode()
def predicted_right(subject: Subject, images: Tensor, labels: Tensor) -> Tensor:
    """Return which images the model gives their label; logits that are not finite, or too few, raise."""
    logits: Tensor = subject.model(images)
    check_labels_fit(labels, logits)
    if not bool(logits.isfinite().all()):
        raise PumaError("the model's logits are not finite (NaN or infinity); check its weights.")
    return (logits.argmax(dim=1) == labels).cpu()
