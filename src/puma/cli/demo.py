"""``puma demo``: the parts at work on bundled images."""

from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tyro.conf import arg

from puma.attacks import pgd
from puma.errors import PumaError
from puma.models import build, count_parameters
from puma.pools import MixedSampler, Origin, Pool, crop_and_flip, to_unit
from puma.pools.importers.digits import digits
from puma.pools.importing import write_parts
from puma.pools.show import draw_grid
from puma.progress import progress_bar

EPS = 0.1


def demo(
    *,
    out: Annotated[Path, arg(metavar="DIR", help="folder to write")] = Path("demo-output"),
    samples_seen: int = 60_000,
    seed: int = 0,
    force: bool = False,
) -> None:
    """Import the digits, train a small net on attacked images, and attack it: about a minute on two cores.

    Args:
        samples_seen: length of training.
        seed: of weights, batches and attacks.
        force: replace the digits of an earlier demo.
    """
    if samples_seen < 1 or not 0 <= seed < 1 << 63:
        raise PumaError(f"--samples-seen must be positive and --seed in 0..2**63 - 1, got {samples_seen} and {seed}.")
    write_parts(digits(), out / "digits", force=force, progress=True)
    train_pool, test_pool = Pool.open(out / "digits" / "train"), Pool.open(out / "digits" / "test")
    draw_grid(train_pool, out / "digits.png")

    torch.manual_seed(seed)
    model = build("small-8px", train_pool.num_classes, channels=1)
    print(f"{len(train_pool)} training digits, {len(test_pool)} test digits, {count_parameters(model):,} parameters")
    train_on_attacked(model, train_pool, samples_seen=samples_seen, seed=seed)

    test = test_pool.batch(range(len(test_pool)))
    images, labels = to_unit(test.images), test.labels
    generator = torch.Generator().manual_seed(seed)
    attacked = pgd(model, images, labels, EPS, step_size=EPS / 4, steps=40, loss="cw", generator=generator)
    helped = pgd(model, images, labels, -EPS, step_size=EPS / 4, steps=40, loss="cw", generator=generator)
    lines = [
        f"clean accuracy           {accuracy(model, images, labels):6.1%}",
        f"attacked, eps = {EPS}      {accuracy(model, attacked, labels):6.1%}   (PGD-40 on the margin loss)",
        f"helped, eps = -{EPS}       {accuracy(model, helped, labels):6.1%}   (the same search, towards the label)",
    ]
    print("\n".join(lines))
    (out / "demo.txt").write_text("\n".join(lines) + "\n")
    print(f"pictures of the digits: {out / 'digits.png'}")


def train_on_attacked(model: nn.Module, pool: Pool, *, samples_seen: int, seed: int, batch_size: int = 128) -> None:
    """Adversarial training as Madry et al. do it: cross-entropy on images attacked by PGD."""
    sampler = MixedSampler(
        pool.positions_of(Origin.REAL), pool.positions_of(Origin.GENERATED), batch_size, 0.0, samples_seen, seed
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=len(sampler), pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    with progress_bar("train", len(sampler) * batch_size) as advance:
        for positions in sampler:
            batch = pool.batch(positions)
            images = to_unit(crop_and_flip(batch.images, padding=1, flip=False, generator=generator))
            attacked = pgd(model, images, batch.labels, EPS, step_size=EPS / 4, steps=7, generator=generator)
            loss = F.cross_entropy(model(attacked), batch.labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            advance(len(batch), f"loss {loss.item():.3f}")


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of images that the model, in eval mode, gives their label."""
    model.eval()
    with torch.inference_mode():
        return float((model(images).argmax(dim=1) == labels).double().mean())
