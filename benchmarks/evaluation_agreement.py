"""Do other libraries find the same robust accuracy? ``python -m benchmarks.evaluation_agreement POOL WEIGHTS --eps E``.

Foolbox's PGD (CE, 20 steps of eps/4) and torchattacks' AutoAttack, on the first images of a CIFAR-10 test pool and the
small robust net ``resnet4b``. Both libraries are written independently of what ``puma evaluate`` runs. On one core
100 images take about five minutes, nearly all of it in the two AutoAttacks.
"""

from pathlib import Path

import foolbox
import torch
import torchattacks
import tyro
from foolbox.models.pytorch import PyTorchModel
from torch import Tensor, nn

from puma.evaluation.under_attack import ATTACKS, EvaluatedSamples, ResumeFile, find_right, find_robust, run_autoattack
from puma.pools import Pool, to_unit
from puma.training import load_model


def main(pool: Path, weights: Path, /, eps: float, samples: int = 1000, auto_samples: int = 100) -> None:
    model = load_model("resnet4b", 10, weights=weights).requires_grad_(False)
    batch = Pool.open(pool).batch(range(samples))
    images, labels = to_unit(batch.images).contiguous(), batch.labels
    evaluated = EvaluatedSamples.from_tensors(model, images, labels, 250)
    clean = find_right(evaluated, ResumeFile())
    print(f"{weights.name}, eps {eps:.5g}: clean {int(clean.sum())} of {samples}")
    pgd20 = ATTACKS["pgd20"].gradient
    assert pgd20 is not None
    ours = find_robust("pgd20", pgd20, evaluated, clean, eps, ResumeFile())
    compare("PGD-20", ours, clean & foolbox_right(model, images, labels, eps), "foolbox")

    few = slice(0, auto_samples)
    evaluated = EvaluatedSamples.from_tensors(model, images[few], labels[few], 250)
    ours, after = run_autoattack(evaluated, clean[few], eps, ResumeFile())
    print("  AutoAttack, step by step:", {name: int(flags.sum()) for name, flags in after.items()})
    attack = torchattacks.AutoAttack(model, norm="Linf", eps=eps, seed=0)
    attacked = attack(images[few][clean[few]], labels[few][clean[few]])
    theirs = clean[few].clone()
    theirs[clean[few]] = right(model, attacked, labels[few][clean[few]])
    compare("AutoAttack", ours, theirs, "torchattacks")


def foolbox_right(model: nn.Module, images: Tensor, labels: Tensor, eps: float) -> Tensor:
    attack = foolbox.attacks.LinfPGD(rel_stepsize=0.25, steps=20, random_start=True)
    wrapped = PyTorchModel(model, bounds=(0, 1), device="cpu")
    torch.manual_seed(0)
    attacked, _, _ = attack(wrapped, images, labels, epsilons=eps)
    return right(model, attacked, labels)


@torch.no_grad()
def right(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    logits: Tensor = model(images)
    return logits.argmax(dim=1) == labels


def compare(name: str, ours: Tensor, theirs: Tensor, library: str) -> None:
    differ = int((ours != theirs).sum())
    print(f"  {name}: puma {int(ours.sum())}, {library} {int(theirs.sum())} of {len(ours)}; {differ} samples differ")


if __name__ == "__main__":
    tyro.cli(main)
