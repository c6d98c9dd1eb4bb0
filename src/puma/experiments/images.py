"""The images of a setting: pools that the user has imported, parts of them, and extra ones made from them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.experiments.presets import ALL, ExperimentSetting, GeneratedImages, OwnImages
from puma.experiments.spec import GeneratedAmount, OutsideModel
from puma.files import lock
from puma.pools import Chunk, Origin, Pool, PoolPart, distort_pool, is_pool, read_digits, write_parts

_ROWS = 4096  # copied in one go


@dataclass(frozen=True)
class DatasetEntry:
    """A data set: what it is called, and how its pools come to be in the data folder."""

    title: str
    shape: tuple[int, int, int]
    how: str
    num_classes: int = 10


DATASETS: dict[str, DatasetEntry] = {
    "digits": DatasetEntry("scikit-learn's digits, 8 px", (8, 8, 1), "they are bundled"),
    "fashion-mnist-14px": DatasetEntry(
        "Fashion-MNIST, 14 px",
        (14, 14, 1),
        "puma data import fashion-mnist FOLDER --pool 2 --out {data}/fashion-mnist-14px",
    ),
    "cifar10": DatasetEntry("CIFAR-10", (32, 32, 3), "puma data import cifar10 FOLDER --out {data}/cifar10"),
    "tiny-imagenet-20": DatasetEntry(
        "20 classes of Tiny-ImageNet, 32 px",
        (32, 32, 3),
        "puma data import imagenet21k TARS --classes 20 --size 32 --test-per-id 20 --out {data}/tiny-imagenet-20",
        20,
    ),
    "imagenet21k-100": DatasetEntry(
        "ImageNet-21K-100, 224 px",
        (224, 224, 3),
        "puma data import imagenet21k TARS --out {data}/imagenet21k-100",
        100,
    ),
}
_HOW_WEIGHTS = (
    "the weights of a robust {net} are not at {file}; put some there (docs/reproduce.md says which), or give a run or "
    "file of yours with --init and --margin-model"
)
_HOW_GENERATED = "puma data import npz FILE.npz --like {data}/{dataset}/train --out {data}/{pool}"


@dataclass(frozen=True)
class SettingPools:
    """Folders of pools to train and to test on, and what a reader of the results should know about them."""

    pools: tuple[Path, ...]
    test: Path
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageLibrary:
    """Where pools are found (``data``) and where parts of them are written (``work``)."""

    data: Path
    work: Path
    setting: ExperimentSetting

    @property
    def title(self) -> str:
        """What the images are called."""
        return self.setting.dataset if self.setting.own is not None else DATASETS[self.setting.dataset].title

    def find_pools(self, amount: GeneratedAmount) -> SettingPools:
        """Return the pools of a setting with an amount of generated images, writing those that do not exist yet."""
        if self.setting.own is not None:
            return _list_own_pools(self.setting.own, amount)
        train, test = self._find_official()
        real, notes = self._find_real(train)
        if amount == "none" or not self.setting.generated:
            return SettingPools((real,), test, notes)
        generated, more = self._find_generated(amount, train)
        return SettingPools((real, generated), test, notes + more)

    def list_missing(self, amounts: set[GeneratedAmount]) -> list[str]:
        """Return a sentence for every pool that has to be imported first."""
        if self.setting.own is not None:
            return []
        name, sentences = self.setting.dataset, []
        parts = [self.data / name / part for part in ("train", "test")]
        if name != "digits" and not all(map(is_pool, parts)):
            how = DATASETS[name].how.format(data=self.data)
            sentences.append(f"{DATASETS[name].title} is not at {self.data / name}; import it with: {how}")
        wanted = {self.setting.generated[amount].pool for amount in amounts if amount in self.setting.generated}
        for pool in sorted(wanted) if name != "digits" and not self.setting.stands_in else ():
            if not is_pool(self.data / pool):
                how = _HOW_GENERATED.format(data=self.data, dataset=name, pool=pool)
                sentences.append(f"generated images are not at {self.data / pool}; import them with: {how}")
        if self.setting.weights and not self.weights.is_file():
            sentences.append(_HOW_WEIGHTS.format(net=self.setting.nets["main"].model, file=self.weights))
        return sentences

    @property
    def weights(self) -> Path:
        """Where the weights of the setting's robust net are."""
        return self.data / self.setting.weights

    @property
    def robust_model(self) -> OutsideModel:
        """The robust net that margins are measured with, where the setting has weights of one."""
        return OutsideModel(self.setting.nets["main"].model, str(self.weights))

    def check_shapes(self) -> None:
        """Raise where a pool at the place of a data set holds images of another size."""
        if self.setting.dataset == "digits" or self.setting.own is not None:
            return
        source = DATASETS[self.setting.dataset]
        for part in ("train", "test"):
            pool = Pool.open(self.data / self.setting.dataset / part)
            if pool.image_shape != source.shape:
                raise PumaError(
                    f"{source.title} has images of {source.shape}, {pool.stores[0].path} has {pool.image_shape}; "
                    f"import it with: {source.how.format(data=self.data)}."
                )

    def _find_official(self) -> tuple[Path, Path]:
        name = self.setting.dataset
        bundled = name == "digits"
        folder = self._make_pool(name, lambda out: write_parts(read_digits(), out)) if bundled else self.data / name
        return folder / "train", folder / "test"

    def _find_real(self, train: Path) -> tuple[Path, tuple[str, ...]]:
        wanted = self.setting.real
        pool = Pool.open(train)
        if wanted == ALL or wanted >= len(pool):
            return train, ()
        note = f"{wanted:,} of the {len(pool):,} real training images are used as real ones."
        return self._copy_part(pool, np.arange(wanted), Origin.REAL, f"{self.setting.dataset}-real-{wanted}"), (note,)

    def _find_generated(self, amount: GeneratedAmount, train: Path) -> tuple[Path, tuple[str, ...]]:
        asked, name = self.setting.generated[amount], self.setting.dataset
        if name == "digits":
            note = f"{asked.count:,} extra images were made from the training digits by affine and elastic distortion."
            out = f"{asked.pool}-{asked.count}"
            parts = {"": distort_pool(Pool.open(train), asked.count)}
            return self._make_pool(out, lambda path: write_parts(parts, path)), (note,)
        place = self.data / asked.pool
        if is_pool(place):
            return self._take_generated(place, asked)
        pool = Pool.open(train)
        count = min(asked.count, len(pool) - self.setting.real)
        if not self.setting.stands_in:
            raise PumaError(f"{'; '.join(self.list_missing({amount}))}.")
        if count < 1:
            raise PumaError(
                f"there are no generated images at {place}, and of {len(pool):,} training images none are left beside "
                f"{self.setting.real:,} real ones to play them; import some with: "
                f"{_HOW_GENERATED.format(data=self.data, dataset=name, pool=asked.pool)}."
            )
        rows = np.arange(self.setting.real, self.setting.real + count)
        note = f"{count:,} other real training images play the generated ones."
        return self._copy_part(pool, rows, Origin.GENERATED, f"{name}-stand-in-{count}"), (note,)

    def _take_generated(self, place: Path, asked: GeneratedImages) -> tuple[Path, tuple[str, ...]]:
        pool = Pool.open(place)
        if asked.count == ALL or asked.count == len(pool):
            return place, (f"generated images: all {len(pool):,} of {asked.pool}.",)
        if asked.count > len(pool):
            return place, (f"generated images: {asked.pool} has {len(pool):,} of the {asked.count:,} asked for.",)
        note = f"generated images: {asked.count:,} of the {len(pool):,} of {asked.pool}."
        part = self._copy_part(pool, np.arange(asked.count), Origin.GENERATED, f"{asked.pool}-{asked.count}")
        return part, (note,)

    def _copy_part(self, pool: Pool, places: NDArray[np.int64], origin: Origin, name: str) -> Path:
        """Copy some images of a pool: those at these places of a fixed random order, so that classes are mixed."""
        rows = np.sort(np.random.default_rng(0).permutation(len(pool))[places])

        part = PoolPart(
            _copy_rows(pool, rows, pool.labels[rows]), pool.class_names, len(rows), origin, allow_empty_class=True
        )
        return self._make_pool(
            f"{name}-{pool.fingerprint[:8]}", lambda out: write_parts({"": part}, out, progress=True)
        )

    def mislabel(self, place: Path, share: float) -> Path:
        """Return a copy of a pool in which a random share of the images has another label, any other one."""
        pool, rng = Pool.open(place), np.random.default_rng(1)
        rows, labels = np.arange(len(pool)), np.array(pool.labels, dtype=np.int64)
        wrong = rng.permutation(len(pool))[: int(share * len(pool))]
        labels[wrong] = (labels[wrong] + rng.integers(1, pool.num_classes, len(wrong))) % pool.num_classes
        part = PoolPart(
            _copy_rows(pool, rows, labels), pool.class_names, len(pool), pool.origin[:], allow_empty_class=True
        )
        name = f"{place.name}-mislabelled-{100 * share:g}-{pool.fingerprint[:8]}"
        return self._make_pool(name, lambda out: write_parts({"": part}, out, progress=True))

    def _make_pool(self, name: str, make: Callable[[Path], object]) -> Path:
        out = self.work / "pools" / name
        with lock(out, wait=True):
            if not out.is_dir():
                make(out)
        return out


def _copy_rows(pool: Pool, rows: NDArray[np.int64], labels: NDArray[np.int64]) -> Iterator[Chunk]:
    for start in range(0, len(rows), _ROWS):
        images = pool.batch(rows[start : start + _ROWS]).images
        yield images.permute(0, 2, 3, 1).numpy(), labels[start : start + _ROWS]


def _list_own_pools(own: OwnImages, amount: GeneratedAmount) -> SettingPools:
    """Return the user's pools; without generated images every row is trained on the real ones alone."""
    if own.generated is None:
        note = () if amount == "none" else ("There are no generated images: every row is trained on real ones alone.",)
        return SettingPools((own.real,), own.test, note)
    return SettingPools((own.real,) if amount == "none" else (own.real, own.generated), own.test)
