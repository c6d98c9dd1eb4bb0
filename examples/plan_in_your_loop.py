"""A plan in a training loop of your own: twenty lines, of which four know of PUMA.

    python examples/plan_in_your_loop.py        # half a minute on one core

The loop is any loop: here it is training on the attacked images (Madry et al.) with Adam. The plan says which images
come, and how strongly each is attacked; a negative strength moves an image towards its label.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import puma

EPS = 0.1


def make_net() -> nn.Module:
    """Return a small net with fresh weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 10))


def train(plan: puma.Plan, pool: puma.Pool, epochs: int) -> nn.Module:
    """Train a fresh net on what the plan keeps."""
    model = make_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = plan.loader(pool, batch_size=64)
    for _ in range(epochs):
        for images, labels, strength, _sample_id in loader:
            attacked = puma.pgd(model, images, labels, strength)  # one signed radius per image
            loss = F.cross_entropy(model(attacked), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def main(epochs: int) -> None:
    """Compare a plan that attacks every image alike with one that follows margins."""
    images, labels = load_digits(return_X_y=True)
    pixels = (images / 16).reshape(-1, 1, 8, 8)
    pool = puma.Pool.from_tensors(pixels[:1400], labels[:1400])
    test = puma.Pool.from_tensors(pixels[1400:], labels[1400:])

    alike = puma.make_plan(pool, eps=EPS)  # nothing pruned, everything attacked with eps
    plain = train(alike, pool, epochs)
    margins = puma.measure_pool(plain, pool)
    fitted = puma.make_plan(pool, margins, prune_easy=0.2, eps=EPS)
    pruned = train(fitted, pool, epochs)
    for name, plan, model in (("alike", alike, plain), ("fitted", fitted, pruned)):
        accuracy = puma.evaluate(model, test, eps=EPS)
        print(f"{name:<7} {accuracy['clean']:.1%} right, {accuracy['cw']:.1%} under attack   {plan}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="passes over what the plan keeps")
    main(parser.parse_args().epochs)
