"""Which samples a model gets right: clean, under gradient attacks, under AutoAttack; batch by batch and resumable.

AutoAttack (Croce and Hein, 2020) is run by its authors' code, package ``pyautoattack``.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from puma.attacks import check_batch, check_labels_fit, run_pgd
from puma.errors import PumaError, tell_missing
from puma.files import read_json, write_checked_json
from puma.models import frozen
from puma.pools import Pool, to_unit
from puma.progress import progress_bar

STEPS_PER_RADIUS = 4  # a step is a quarter of the radius: 2/255 at 8/255
NORM_NAMES = {"linf": "Linf", "l2": "L2"}  # as pyautoattack spells them
STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")  # AutoAttack's standard version, in its order
_ATTRIBUTES = {"apgd-ce": "apgd", "apgd-t": "apgd_targeted", "fab-t": "fab", "square": "square"}
_TARGETS = 9  # classes that the targeted attacks of the standard version try


@dataclass(frozen=True)
class GradientAttack:
    """PGD from a uniform start, steps of a quarter of the radius; the last iterate counts."""

    loss: str
    steps: int


@dataclass(frozen=True)
class EvaluationAttack:
    """An attack of an evaluation: its title in a report, the name of its accuracy in results, its cost per image."""

    title: str
    quantity: str
    cost: str
    gradient: GradientAttack | None = None


AttackName = Literal["clean", "cw", "autoattack", "pgd20"]

# in the order in which they are told; the first one behind clean that was run is what robustness means
ATTACKS: Mapping[str, EvaluationAttack] = {
    "clean": EvaluationAttack("accuracy", "clean_accuracy", "1 pass"),
    "cw": EvaluationAttack("robustness (C&W)", "robust_accuracy", "40 steps", GradientAttack("cw", 40)),
    "autoattack": EvaluationAttack("AutoAttack", "autoattack_accuracy", "up to 6,900 passes"),
    "pgd20": EvaluationAttack("PGD-20", "pgd20_accuracy", "20 steps", GradientAttack("ce", 20)),
}


def title_attack(name: str) -> str:
    """Return how a report calls an attack; one that is not known keeps its name."""
    return ATTACKS[name].title if name in ATTACKS else name


class LogitsModel(nn.Module):
    """A model of any precision as attacks want it: images in float32 go in, logits in float32 come out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, images: Tensor) -> Tensor:
        """Return logits; an answer that is no tensor raises."""
        weight = next((value for value in self.model.parameters() if value.is_floating_point()), images)
        logits = self.model(images.to(weight.dtype))
        if not isinstance(logits, Tensor):
            raise PumaError(
                f"the model must return a tensor of logits, it returned a {type(logits).__name__}; "
                "wrap it in a module that returns the logits alone."
            )
        return logits if logits.dtype == torch.float32 else logits.float()


@dataclass(frozen=True, eq=False)
class EvaluatedSamples:
    """A model in eval mode and ``count`` samples; ``read(positions)`` gives images in [0, 1] and labels on a device."""

    model: nn.Module
    count: int
    read: Callable[[Tensor], tuple[Tensor, Tensor]]
    batch_size: int

    @classmethod
    def from_tensors(cls, model: nn.Module, images: Tensor, labels: Tensor, batch_size: int) -> "EvaluatedSamples":
        """Judge a model on tensors."""
        check_batch(images, labels, (0.0, 1.0))

        def read(positions: Tensor) -> tuple[Tensor, Tensor]:
            return images[positions.to(images.device)], labels[positions.to(labels.device)]

        return cls(LogitsModel(model), len(images), read, batch_size)

    @classmethod
    def from_pool(
        cls, model: nn.Module, pool: Pool, rows: NDArray[np.int64], device: torch.device, batch_size: int
    ) -> "EvaluatedSamples":
        """Judge a model on some rows of a pool; images are read when they are needed."""

        def read(positions: Tensor) -> tuple[Tensor, Tensor]:
            batch = pool.batch(rows[positions.numpy()])
            return to_unit(batch.images.to(device)).contiguous(), batch.labels.to(device)

        return cls(LogitsModel(model), len(rows), read, batch_size)

    def warn_of_classes(self, classes: int) -> list[str]:
        """Pass one image through the model; one that cannot take it raises, more classes are told."""
        images, _ = self.read(torch.zeros(1, dtype=torch.int64))
        try:
            with torch.inference_mode():
                logits: Tensor = self.model(images)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if isinstance(error, PumaError):
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            shape = tuple(images.shape[1:])
            raise PumaError(f"the model cannot take images of {shape} (channels, height, width): {reason}.") from error
        if logits.dim() != 2 or len(logits) != 1:
            raise PumaError(f"the model must give logits of shape (1, classes), got {tuple(logits.shape)}.")
        known = logits.shape[1]
        if known <= classes:  # labels that it has no logit for raise when they come
            return []
        return [
            f"the model knows {known} classes, the pool has {classes}: what it takes for one of the others counts as "
            "wrong; check that the classes have the same order"
        ]

    def batches(self, positions: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Read samples in batches of positions, images and labels."""
        for start in range(0, len(positions), self.batch_size):
            part = positions[start : start + self.batch_size]
            yield part, *self.read(part)


@dataclass
class ResumeFile:
    """Flags per attack and how many samples it has done; kept in a file if there is a path.

    ``key`` names everything that the flags depend on: a file with another key is not used.
    """

    key: str = ""
    path: Path | None = None
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, key: str) -> "ResumeFile":
        """Read a file, or start anew if there is none, it is damaged, or it has another key."""
        try:
            stored = read_json(path, "the resume file of puma evaluate")
            entries = dict(stored["entries"]) if stored["key"] == key else {}
            whole = all(
                set(entry["flags"]) <= {"0", "1"} and 0 <= int(entry["done"]) <= len(entry["flags"])
                for entry in entries.values()
            )
        except (ValueError, KeyError, TypeError, OverflowError):
            whole = False
        return cls(key, path, entries if whole else {})

    def get(self, name: str) -> tuple[Tensor, int] | None:
        """Return an attack's flags (n,) and how many of its samples are done."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        return torch.tensor([letter == "1" for letter in entry["flags"]], dtype=torch.bool), int(entry["done"])

    def put(self, name: str, flags: Tensor, done: int) -> None:
        """Remember flags and progress; the file is replaced whole."""
        letters = "".join("1" if flag else "0" for flag in flags.tolist())
        self.entries[name] = {"flags": letters, "done": done}
        if self.path is not None:
            write_checked_json(self.path, {"key": self.key, "entries": self.entries})


def choose_rows(pool: Pool, max_samples: int, *, first: bool = False) -> NDArray[np.int64]:
    """Return the positions to evaluate: all, or ``max_samples`` drawn at random, the same ones every time.

    A pool sorted by class would bias the first ones, which ``first`` takes nevertheless.
    """
    if not len(pool):
        raise PumaError("the pool has no samples to evaluate.")
    if not max_samples or max_samples >= len(pool):
        return np.arange(len(pool))
    if first:
        return np.arange(max_samples)
    return np.sort(np.random.default_rng(0).permutation(len(pool))[:max_samples])


def find_right(samples: EvaluatedSamples, resume: ResumeFile, *, show: bool = False) -> Tensor:
    """Return which samples (n,) the model gets right."""
    stored = resume.get("clean")
    if stored is not None:
        return stored[0]
    right = torch.zeros(samples.count, dtype=torch.bool)
    with progress_bar("clean", samples.count, enabled=show) as advance:
        for positions, images, labels in samples.batches(torch.arange(samples.count)):
            right[positions] = judge_batch(samples, images, labels)
            advance(len(positions))
    resume.put("clean", right, samples.count)
    return right


def find_robust(
    name: str,
    attack: GradientAttack,
    samples: EvaluatedSamples,
    before: Tensor,
    eps: float,
    resume: ResumeFile,
    *,
    norm: str = "linf",
    seed: int = 0,
    show: bool = False,
) -> Tensor:
    """Return which of the samples that were right ``before`` stay right under an attack; the others are not run."""

    def perturb(positions: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        return run_pgd(  # a curve goes beyond the radii that pgd takes
            samples.model,
            images,
            labels,
            eps,
            step_size=max(eps / STEPS_PER_RADIUS, 1e-12),
            steps=attack.steps,
            loss=attack.loss,
            norm=norm,
            generator=Generator(images.device).manual_seed((seed * 1_000_003 + int(positions[0])) % 2**63),
        )

    return keep_robust(name, perturb, samples, before, resume, show=show)


def keep_robust(
    name: str,
    perturb: Callable[[Tensor, Tensor, Tensor], Tensor],
    samples: EvaluatedSamples,
    before: Tensor,
    resume: ResumeFile,
    *,
    show: bool = False,
) -> Tensor:
    """Return which samples stay right when ``perturb(positions, images, labels)`` has moved their images."""
    flags, done = resume.get(name) or (before.clone(), 0)
    candidates = before.nonzero().squeeze(1)
    with progress_bar(name.removeprefix("autoattack/"), len(candidates) - done, enabled=show) as advance:
        for positions, images, labels in samples.batches(candidates[done:]):
            flags[positions] = judge_batch(samples, perturb(positions, images, labels), labels)
            done += len(positions)
            resume.put(name, flags, done)
            advance(len(positions))
    return flags


@torch.inference_mode()
def judge_batch(samples: EvaluatedSamples, images: Tensor, labels: Tensor) -> Tensor:
    """Return which images the model gives their label; logits that are not finite, or too few, raise."""
    logits: Tensor = samples.model(images)
    check_labels_fit(labels, logits)
    if not bool(logits.isfinite().all()):
        raise PumaError("the model's logits are not finite (NaN or infinity); check its weights.")
    return (logits.argmax(dim=1) == labels).cpu()


def load_autoattack() -> Any:
    """Import the package, or say how to install it."""
    with tell_missing("eval"):
        import pyautoattack
    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    return pyautoattack


def list_standard_attacks(num_classes: int) -> tuple[str, ...]:
    """Return the attacks of the standard version; the targeted DLR loss needs four classes."""
    return STANDARD if num_classes >= 4 else tuple(name for name in STANDARD if name != "apgd-t")


def run_autoattack(
    samples: EvaluatedSamples,
    before: Tensor,
    eps: float,
    resume: ResumeFile,
    *,
    norm: str = "linf",
    seed: int = 0,
    show: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return which samples stay right under all attacks, and the flags after each of them.

    Each attack runs on what the ones before it left, as in the original.
    """
    package = load_autoattack()
    after: dict[str, Tensor] = {}
    flags = before
    device = samples.read(torch.zeros(min(1, samples.count), dtype=torch.int64))[1].device
    with frozen(samples.model):
        suite = package.AutoAttack(samples.model, norm=NORM_NAMES[norm], eps=eps, seed=seed, device=device)
        num_classes = _count_classes(samples)
        suite.apgd_targeted.n_target_classes = suite.fab.n_target_classes = min(_TARGETS, num_classes - 1)
        for name in list_standard_attacks(num_classes):

            def perturb(_: Tensor, images: Tensor, labels: Tensor, name: str = name) -> Tensor:
                return run_one_attack(name, suite, images, labels)

            flags = keep_robust(f"autoattack/{name}", perturb, samples, flags, resume, show=show)
            after[name] = flags
    return flags, after


def run_one_attack(name: str, suite: Any, images: Tensor, labels: Tensor) -> Tensor:
    """Run one attack of a suite on a batch; the global random state is left as it was."""
    attack = getattr(suite, _ATTRIBUTES[name])
    attack.seed = suite.seed
    if name == "apgd-ce":
        attack.loss = "ce"
    if name == "fab-t":
        attack.targeted, attack.n_restarts = True, 1
    devices = [images.device] if images.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        perturbed: Tensor = attack.perturb(images.contiguous(), labels)
    return perturbed


@torch.inference_mode()
def _count_classes(samples: EvaluatedSamples) -> int:
    images, _ = samples.read(torch.zeros(1, dtype=torch.int64))
    logits: Tensor = samples.model(images)
    return logits.shape[1]
