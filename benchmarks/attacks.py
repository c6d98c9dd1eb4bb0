"""PGD-10 against ten bare passes and against other libraries: ``python -m benchmarks attacks``."""

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.side_by_side import interleaved, print_table, stand_in
from puma.attacks import pgd
from puma.models import build, frozen

EPS, STEP, STEPS = 8 / 255, 2 / 255, 10


def main(rounds: int = 7, batch_size: int = 64) -> None:
    """Print a table per model."""
    stand_in("torchvision", "torchvision.models", "torchvision.transforms", "torchvision.datasets")
    import foolbox
    import torchattacks
    from foolbox.models.pytorch import PyTorchModel

    torch.manual_seed(0)
    for name in ("resnet18-slim", "resnet4b"):
        model = build(name, 10).eval()
        images, labels = torch.rand(batch_size, 3, 32, 32), torch.randint(10, (batch_size,))
        wrapped = PyTorchModel(model, bounds=(0, 1), device="cpu")
        foolbox_pgd = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS)
        torchattacks_pgd = torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=STEPS)
        ways = {
            "ten bare passes": lambda m=model, x=images, y=labels: bare_passes(m, x, y),
            "puma.pgd": lambda m=model, x=images, y=labels: pgd(m, x, y, EPS, step_size=STEP, steps=STEPS),
            "foolbox LinfPGD": lambda a=foolbox_pgd, w=wrapped, x=images, y=labels: a.run(w, x, y, epsilon=EPS),
            "torchattacks PGD": lambda a=torchattacks_pgd, x=images, y=labels: a(x, y),
        }
        seconds = interleaved(ways, rounds=rounds)  # type: ignore[arg-type]
        print_table(f"PGD-{STEPS}, {name}, batch {batch_size}", seconds, "ten bare passes")


def bare_passes(model: torch.nn.Module, images: Tensor, labels: Tensor) -> None:
    """What any ten-step attack must do at least."""
    with frozen(model):
        for _ in range(STEPS):
            point = images.detach().requires_grad_()
            torch.autograd.grad(F.cross_entropy(model(point), labels, reduction="sum"), point)


if __name__ == "__main__":
    main()
