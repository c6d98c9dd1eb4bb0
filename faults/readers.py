"""Every reader of PUMA with a sample of what it reads: how to write it, and a digest of all that is read back."""

import copy
import gzip
import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from puma.evaluation import Count, EvaluationMetrics, read_evaluation, write_evaluation
from puma.evaluation.under_attack import ResumeFile
from puma.experiments.results import ResultLine, ResultOrigin, read_results_file, write_results_file
from puma.generation.generator_folder import (
    GeneratorConfig,
    GeneratorFolder,
    GeneratorInputs,
    load_generator,
    make_unet,
)
from puma.generation.unet import UNetConfig
from puma.margins import Margins, read_margins
from puma.models import build, load_weights
from puma.perceptron.sweep import ResultCache
from puma.planning import Plan
from puma.pools import Pool
from puma.pools.datasets import CIFAR10, MNIST_CLASSES, read_cifar, read_mnist
from puma.pools.npz import read_npz
from puma.pools.pictures import list_pictures, write_picture_folder
from puma.pools.store import open_store
from puma.pools.writer import PoolPart, write_parts
from puma.report.experiment_record import ExperimentRecord, read_record, write_record
from puma.scores import Scores
from puma.scores.score_table import open_scores, save_scores
from puma.training import TrainConfig, load_model
from puma.training.checkpoint import TrainProgress, load_newest, save_checkpoint
from puma.training.run_folder import RunFolder, RunInputs

COUNT = 12  # samples: small files have most of their bytes where a reader looks
SHAPE = (8, 8, 1)
ANEW = "begun anew"  # what is read of a file that only saves work: without it the work is done again
CLASSES = ("zero", "one", "two")
_EVERY = np.arange(COUNT)


@dataclass(frozen=True)
class Reader:
    """A reader, a sample of what it reads, and whether damage to that can be told from the file alone.

    ``write(folder)`` makes the sample. ``read(folder)`` returns a digest of everything in it, or raises a PumaError.
    ``checked``: what is accepted must be what was written. Other formats have no checksum, so that a changed digit is
    another number; they must be refused or read without a crash, in bounded time and memory.
    """

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], str]
    checked: bool = True
    text: bool = False


def digest(*values: Any) -> str:
    """Return a hash of arrays, tensors and plain values."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            value = value.detach().numpy()
        if isinstance(value, np.ndarray):
            found.update(f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        else:
            found.update(repr(value).encode())
    return found.hexdigest()


def draw_images(count: int = COUNT, shape: tuple[int, int, int] = SHAPE) -> NDArray[np.uint8]:
    """Return the images that all samples hold."""
    return np.random.default_rng(0).integers(256, size=(count, *shape)).astype(np.uint8)


LABELS = (_EVERY % len(CLASSES)).astype(np.int32)


def write_sample_pool(folder: Path) -> Path:
    """Write a pool of the images."""
    write_parts({"": PoolPart([(draw_images(), LABELS)], CLASSES, COUNT, 0)}, folder / "pool", force=True)
    return folder / "pool"


def read_pool(folder: Path) -> str:
    """Open a pool, verify it, and read all of it."""
    store = open_store(folder / "pool")
    store.verify()
    pool = Pool.open(folder / "pool")
    batch = pool.batch(np.arange(len(pool)))
    return digest(batch.images, batch.labels, batch.sample_id, pool.class_names, pool.fingerprint)


def import_parts(parts: Mapping[str, PoolPart], folder: Path) -> str:
    """Write parts as an import does, with all its checks, and read them back."""
    write_parts(parts, folder / "imported", force=True)
    places = [folder / "imported" / name if name else folder / "imported" for name in sorted(parts)]
    pools = [Pool.open(place) for place in places]
    return digest(*(pool.fingerprint for pool in pools), *(pool.batch(np.arange(len(pool))).images for pool in pools))


def write_npz(folder: Path) -> None:
    """Write an .npz as generators publish them."""
    np.savez_compressed(folder / "a.npz", image=draw_images(), label=LABELS)


def write_idx(folder: Path, *, packed: bool) -> None:
    """Write the four idx files of MNIST."""
    for part in ("train", "t10k"):
        images, labels = draw_images(COUNT, (8, 8, 1)), _EVERY % 10
        for kind, values in (("images-idx3", images[..., 0]), ("labels-idx1", labels.astype(np.uint8))):
            head = bytes((0, 0, 8, values.ndim)) + b"".join(size.to_bytes(4, "big") for size in values.shape)
            content = head + values.tobytes()
            place = folder / f"{part}-{kind}-ubyte"
            if packed:
                place.with_name(f"{place.name}.gz").write_bytes(gzip.compress(content, mtime=0))
            else:
                place.write_bytes(content)


def write_cifar(folder: Path, *, archive: bool) -> None:
    """Write CIFAR-10 with ten images a batch."""
    pixels = draw_images(10, (32, 32, 3)).transpose(0, 3, 1, 2).reshape(10, -1)
    names = [*(f"data_batch_{index}" for index in range(1, 6)), "test_batch"]
    batches = {name: pickle.dumps({b"data": pixels, b"labels": list(range(10))}) for name in names}
    if not archive:
        (folder / "cifar-10-batches-py").mkdir()
        for name, content in batches.items():
            (folder / "cifar-10-batches-py" / name).write_bytes(content)
        return
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz", compresslevel=1) as tar:
        for name, content in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_pictures(folder: Path) -> None:
    """Write a folder of pictures of several kinds."""
    from PIL import Image

    for index, image in enumerate(draw_images(6, (16, 16, 3))):
        place = folder / "pictures" / CLASSES[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{index}.{('png', 'jpg', 'bmp')[index % 3]}")


def read_pictures(folder: Path) -> str:
    """Import the pictures as an array."""
    pictures = list_pictures(folder / "pictures", 8, 3)
    pool = Pool.open(write_picture_folder(pictures, folder / "imported", strict=True, force=True))
    return digest(pool.batch(np.arange(len(pool))).images, pool.labels, pool.class_names)


def make_margins() -> Margins:
    """Return margins of the images."""
    whole = torch.arange(COUNT)
    made_from = {"method": "deepfool", "norm": "linf", "pool_fingerprint": "ab" * 32}
    margin = torch.linspace(-0.1, 0.1, COUNT)
    return Margins(
        margin=margin,
        status=torch.zeros(COUNT, dtype=torch.int8),
        label=whole % 3,
        prediction=whole % 3,
        rival=whole % 2,
        forwards=whole.int(),
        backwards=whole.int(),
        sample_id=whole,
        made_from=made_from,
    )


def read_margins_file(folder: Path) -> str:
    """Read margins with all columns and the footer."""
    found = read_margins(folder / "m.parquet")
    columns = (found.margin, found.status, found.label, found.prediction, found.rival, found.forwards, found.sample_id)
    return digest(*columns, sorted(found.made_from.items(), key=str))


def make_plan() -> Plan:
    """Return a plan of the images."""
    ids = torch.arange(COUNT)
    return Plan(ids, ids % 4 > 0, torch.linspace(-0.1, 0.1, COUNT), "ab" * 32, {"strength.eps": "0.1"}, ())


def read_plan(folder: Path) -> str:
    """Read a plan."""
    plan = Plan.open(folder / "p.parquet")
    columns = (plan.sample_id, plan.keep, plan.strength)
    return digest(*columns, plan.pool_fingerprint, sorted(plan.made_from.items()), plan.links)


def write_scores(folder: Path) -> None:
    """Write two scores into one table."""
    scores = [
        Scores(kind, _EVERY, np.linspace(0, 1, COUNT, dtype=np.float32), "ab" * 32) for kind in ("cd_clean", "el2n")
    ]
    save_scores(scores, folder / "s.parquet")


def read_scores(folder: Path) -> str:
    """Read both."""
    found = [open_scores(folder / "s.parquet", kind) for kind in ("cd_clean", "el2n")]
    return digest(*(value for one in found for value in (one.kind, one.sample_id, one.score, one.pool_fingerprint)))


def write_run(folder: Path) -> None:
    """Write the folder of a run with a checkpoint, as training leaves it."""
    run = RunFolder(folder / "run")
    inputs = RunInputs(("pool",), None, "ab" * 32, None, 3, 1, (8, 8))
    run.create(TrainConfig(model="small-8px"), inputs)
    model = _make_small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sum(parameter.sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    from puma.models.weights import save_tensors

    save_tensors(run.model, model.state_dict(), {"step": "1"})
    save_checkpoint(run.checkpoint, model, copy.deepcopy(model), optimizer, TrainProgress(1))


def _make_small() -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build("small-8px", 3, channels=1)


def read_run(folder: Path) -> str:
    """Read configuration, inputs and model of a run."""
    run = RunFolder(folder / "run")
    config, inputs = run.read()
    return digest(config, inputs, *load_model(run.path).state_dict().values())


def read_checkpoint(folder: Path) -> str:
    """Restore the only checkpoint of a run."""
    model, average = _make_small(), _make_small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    progress = load_newest(folder / "run" / "checkpoint", model, average, optimizer, tell=lambda _: None)
    if progress is None:
        return ANEW
    states = [value["momentum_buffer"] for value in optimizer.state.values()]
    return digest(progress, *model.state_dict().values(), *average.state_dict().values(), *states)


def write_metrics(folder: Path) -> None:
    """Write metrics.jsonl."""
    run = RunFolder(folder)
    for step in range(5):
        run.append_metrics({"step": step, "samples": 10 * step, "loss": 1 / (step + 1)})


def write_state_dict(folder: Path, name: str) -> None:
    """Write weights of a user's in either format."""
    state = _make_small().state_dict()
    if name.endswith(".pt"):
        torch.save({"state_dict": state}, folder / name)
    else:
        save_file(state, folder / name, {"mean": "0.5", "std": "0.5"})


def write_counts(folder: Path) -> None:
    """Write metrics.json of an evaluation."""
    counts = {"clean": Count(9, 12), "cw": Count(5, 12)}
    classes = {attack: {name: Count(1, 4) for name in CLASSES} for attack in counts}
    write_evaluation(folder / "evaluation", EvaluationMetrics(counts, classes, 0.1, "linf", "ab" * 32, ("a warning",)))


def write_state(folder: Path) -> None:
    """Write state.json of an evaluation under way."""
    ResumeFile("key", folder / "state.json").put("clean", torch.arange(COUNT) % 2 == 0, COUNT)


def read_state(folder: Path) -> str:
    """Take it up; damage starts it anew, which is no loss but of time."""
    found = ResumeFile.open(folder / "state.json", "key").get("clean")
    return ANEW if found is None else digest(*found)


def write_results(folder: Path) -> None:
    """Write a results file."""
    origin = ResultOrigin("tab-summary", "smoke", "digits")
    lines = [ResultLine(origin, row, "clean_accuracy", seed, 0.5 + seed / 8) for row in ("a", "b") for seed in range(2)]
    write_results_file(folder / "tab-summary.csv", origin, lines)


def write_points(folder: Path) -> None:
    """Write points.jsonl of a perceptron study."""
    ResultCache(folder / "points.jsonl").add({f"key {index}": {"error": index / 7} for index in range(5)})


def read_points(folder: Path) -> str:
    """Read what is left of it: what is damaged is computed again."""
    cache = ResultCache(folder / "points.jsonl")
    found = [cache.get(f"key {index}") for index in range(5)]
    right: list[Any] = [{"error": index / 7} for index in range(5)]
    return "as written, or left out" if all(a is None or a == b for a, b in zip(found, right, strict=True)) else "other"


def write_generator(folder: Path) -> None:
    """Write the folder of a generator."""
    config = GeneratorConfig(net=UNetConfig(width=8, blocks=1))
    inputs = GeneratorInputs(("pool",), "ab" * 32, SHAPE, CLASSES, None, None)
    place = GeneratorFolder(folder / "generator")
    place.create(config, inputs)
    place.save_model(make_unet(config, inputs), 3)


def read_generator(folder: Path) -> str:
    """Load a generator."""
    found = load_generator(folder / "generator")
    return digest(found.config, found.inputs, found.fingerprint, *found.net.state_dict().values())


def write_experiment(folder: Path) -> None:
    """Write experiment.json."""
    record = ExperimentRecord((), experiment="tab", title="A table", notes=("a note",), eps=0.1, norm="linf")
    write_record(folder / "experiment.json", record)


def read_lines(folder: Path) -> str:
    """Read metrics.jsonl."""
    return digest(RunFolder(folder).read_metrics())


def read_user_weights(folder: Path, name: str) -> str:
    """Load weights of a user's."""
    return digest(*load_weights(_make_small(), folder / name).state_dict().values())


def import_npz(folder: Path) -> str:
    """Import an .npz."""
    return import_parts({"": read_npz(folder / "a.npz", origin=1, class_names=None)}, folder)


def import_idx(folder: Path) -> str:
    """Import MNIST."""
    return import_parts(read_mnist(folder, MNIST_CLASSES), folder)


def import_archive(folder: Path) -> str:
    """Import CIFAR-10 from its archive."""
    return import_parts(read_cifar(folder / "cifar-10-python.tar.gz", CIFAR10), folder)


def import_batches(folder: Path) -> str:
    """Import CIFAR-10 from its folder."""
    return import_parts(read_cifar(folder, CIFAR10), folder)


def read_csv(folder: Path) -> str:
    """Read a results file."""
    return digest(read_results_file(folder / "tab-summary.csv"))


def read_json_record(folder: Path) -> str:
    """Read experiment.json."""
    return digest(read_record(folder / "experiment.json"))


def read_counts(folder: Path) -> str:
    """Read metrics.json."""
    return digest(asdict(read_evaluation(folder / "evaluation")))


READERS: tuple[Reader, ...] = (
    Reader("pool", write_sample_pool, read_pool),
    Reader("npz", write_npz, import_npz),
    Reader("idx", partial(write_idx, packed=False), import_idx, checked=False),
    Reader("idx.gz", partial(write_idx, packed=True), import_idx),
    Reader("cifar folder", partial(write_cifar, archive=False), import_batches, checked=False),
    Reader("cifar tar.gz", partial(write_cifar, archive=True), import_archive),
    Reader("pictures", write_pictures, read_pictures, checked=False),
    Reader("margins", lambda folder: make_margins().save(folder / "m.parquet"), read_margins_file),
    Reader("plan", lambda folder: make_plan().save(folder / "p.parquet"), read_plan),
    Reader("scores", write_scores, read_scores),
    Reader("run", write_run, read_run),
    Reader("checkpoint", write_run, read_checkpoint),
    Reader("metrics.jsonl", write_metrics, read_lines, checked=False, text=True),
    Reader("safetensors", partial(write_state_dict, name="w.safetensors"),
           partial(read_user_weights, name="w.safetensors"), checked=False),
    Reader("state dict", partial(write_state_dict, name="w.pt"), partial(read_user_weights, name="w.pt"),
           checked=False),
    Reader("metrics.json", write_counts, read_counts, text=True),
    Reader("state.json", write_state, read_state, text=True),
    Reader("results CSV", write_results, read_csv, checked=False, text=True),
    Reader("points.jsonl", write_points, read_points, text=True),
    Reader("generator", write_generator, read_generator),
    Reader("experiment.json", write_experiment, read_json_record, checked=False, text=True),
)  # fmt: skip
