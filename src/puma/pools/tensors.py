"""Pools out of what a program has in hand: tensors, arrays, or a map-style dataset."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from puma.errors import PumaError, unknown_name
from puma.pools.decoding import DecodePolicy, Resize, fit_picture, fit_pixels
from puma.pools.store import Origin, Store
from puma.pools.writer import check_class_labels, fingerprint_content, spread_rows

Array = Tensor | NDArray[Any] | Sequence[Any]
OriginName = Literal["real", "generated"]
_CHANNELS = (1, 3)  # grey and colour
_CHUNK_BYTES = 1 << 26  # of floats that are turned into bytes in one go


def store_tensors(
    images: Array,
    labels: Array,
    *,
    origin: OriginName | Origin | Array,
    class_names: Sequence[str] | None,
    layout: str | None,
) -> Store:
    """Keep images and labels in memory as a pool's store; what cannot be meant is told in one sentence."""
    class_names = _list_names(class_names)
    pixels = _to_array(images, "images")
    if pixels.ndim == 3:
        pixels = pixels[..., None] if layout in (None, "NHWC") else pixels[:, None]
    if pixels.ndim != 4:
        raise PumaError(f"images must be (n, channels, height, width) or channels last, got shape {pixels.shape}.")
    if not pixels.size:
        raise PumaError(f"there are no images: got shape {pixels.shape}.")
    _check_range(pixels)
    if pixels.dtype == np.uint8 and pixels.max() == 1:
        raise PumaError("uint8 images run from 0 to 255, the highest pixel here is 1; give images * 255.")
    channels_last = _find_layout(pixels.shape[1:], layout) == "NHWC"
    packed = _to_bytes(pixels if channels_last else pixels.transpose(0, 2, 3, 1))
    targets = _to_labels(labels, len(packed), class_names)
    names = _name_classes(targets, class_names)
    return _make_store(packed, targets, _to_origin(origin, len(packed)), names, zlib.crc32(packed.data))


def store_dataset(
    dataset: Any,
    *,
    origin: OriginName | Origin | Array,
    class_names: Sequence[str] | None,
    size: int | None = None,
    resize: Resize = "cover",
) -> Store:
    """Keep a map-style dataset of (image, label) as a pool's store; images are read from it when they are asked for.

    Labels are read once: from ``dataset.targets`` or ``dataset.labels`` where it has them, else item by item. The
    fingerprint looks at 1024 evenly spaced images.
    """
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")) or isinstance(dataset, str | Path | dict):
        hint = "; give its .dataset" if hasattr(dataset, "dataset") else ""
        raise PumaError(
            f"a dataset must have __len__ and __getitem__ and give (image, label), got {type(dataset).__name__}{hint}."
        )
    if not len(dataset):
        raise PumaError("the dataset holds no items.")
    class_names = _list_names(class_names)
    images = DatasetImages(dataset, size, resize)
    count = len(images)
    rows = spread_rows(count)
    targets = _to_labels(_read_labels(dataset, rows), count, class_names)
    names = class_names if class_names is not None else getattr(dataset, "classes", None)
    if names is not None and (not isinstance(names, Sequence) or len(names) <= int(targets.max())):
        names = None
    checksum = 0
    for row in rows:
        checksum = zlib.crc32(images[np.array([row])].data, checksum)
    if not np.array_equal(images[np.array([0])], images[np.array([0])]):
        raise PumaError(
            "the dataset gives another image each time item 0 is read; give it without random augmentation, "
            "which belongs into training."
        )
    return _make_store(images, targets, _to_origin(origin, count), _name_classes(targets, names), checksum)


class DatasetImages:
    """Images of a map-style dataset as rows, read when they are asked for."""

    def __init__(self, dataset: Any, size: int | None = None, resize: Resize = "cover") -> None:
        self.dataset = dataset
        image, _ = _split_item(dataset[0], 0)
        self.channels = 1 if getattr(image, "mode", "RGB") in ("1", "L", "LA") else 3
        self.policy: DecodePolicy | None = None
        if size is not None:
            self.policy = DecodePolicy(size, resize, self._read(0).shape[2])
        self.shape = self._read(0).shape

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read these rows (k, height, width, channels)."""
        images = np.empty((len(rows), *self.shape), dtype=np.uint8)
        for index, row in enumerate(rows):
            image = self._read(int(row))
            if image.shape != self.shape:
                raise PumaError(
                    f"images of a dataset must be of one size: item 0 is {self.shape}, item {row} {image.shape}; "
                    "give size, or resize them in the dataset's transform."
                )
            images[index] = image
        return images

    def _read(self, row: int) -> NDArray[np.uint8]:
        image, _ = _split_item(self.dataset[row], row)
        if hasattr(image, "convert"):  # a PIL image
            converted = image.convert("L" if self.channels == 1 else "RGB")
            if self.policy is not None:
                return fit_picture(converted, self.policy)
            pixels = np.asarray(converted, dtype=np.uint8)
            return pixels.reshape(*pixels.shape[:2], self.channels)
        pixels = _to_array(image, f"the image of item {row}")
        if pixels.ndim == 2:
            pixels = pixels[..., None]
        if pixels.ndim != 3:
            raise PumaError(f"an image must be (channels, height, width) or channels last, got shape {pixels.shape}.")
        _check_range(pixels)
        channels_last = _find_layout(pixels.shape, None) == "NHWC"
        packed = _to_bytes(pixels if channels_last else pixels.transpose(1, 2, 0))
        return packed if self.policy is None else fit_pixels(packed, self.policy)


def _make_store(
    images: Any, labels: NDArray[np.int32], origin: NDArray[np.int8], class_names: tuple[str, ...], checksum: int
) -> Store:
    shape = (int(images.shape[-3]), int(images.shape[-2]), int(images.shape[-1]))
    fingerprint = fingerprint_content(
        lambda row: np.asarray(images[np.array([row])]).tobytes(), labels, origin, shape, class_names, checksum
    )
    return Store(None, images, labels, origin, shape, class_names, fingerprint, checksum)


def _to_array(values: Any, name: str) -> NDArray[Any]:
    if isinstance(values, Tensor):
        try:
            return (values.float() if values.is_floating_point() else values).numpy(force=True)
        except (TypeError, RuntimeError) as error:
            kind = f"{values.dtype} of layout {values.layout} on {values.device}"
            raise PumaError(f"{name} must be a dense tensor of plain numbers, got {kind}.") from error
    if isinstance(values, list | tuple):
        values = [_to_array(one, name) if isinstance(one, Tensor) else one for one in values]
    if hasattr(values, "__getitem__") and not isinstance(values, list | tuple | np.ndarray):
        raise PumaError(
            f"{name} must be a tensor or an array, got {type(values).__name__}; a dataset goes to Pool.from_dataset."
        )
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise PumaError(f"{name} must be one array; the list holds items of several shapes.") from error
    if array.dtype.kind in "US" and name == "labels":
        raise PumaError(
            "labels must be numbers, got names; give np.unique(labels, return_inverse=True)[1], and "
            "class_names=np.unique(labels)."
        )
    if array.dtype.kind not in "biuf":
        raise PumaError(f"{name} must be numbers, got {array.dtype} from {type(values).__name__}.")
    return array


def _check_range(pixels: NDArray[Any]) -> None:
    """Pixels are bytes or floats in [0, 1]; for anything else name the way back."""
    if pixels.dtype == np.uint8:
        return
    if pixels.dtype.kind != "f":
        raise PumaError(
            f"images must be uint8 (0 to 255) or floating point in [0, 1], got {pixels.dtype}; "
            "convert with images.astype(np.uint8), or images.to(torch.uint8)."
        )
    low, high = float(pixels.min()), float(pixels.max())
    if not np.isfinite([low, high]).all():
        raise PumaError(f"images must be finite, {int((~np.isfinite(pixels)).sum()):,} of their values are not.")
    if low < 0:
        raise PumaError(
            f"pixels must lie in [0, 1], got {low:.2f} to {high:.2f}: they look normalised; undo it with "
            "images * std + mean, and normalise inside the model."
        )
    if high > 1:
        raise PumaError(f"pixels must lie in [0, 1], got {low:.2f} to {high:.2f}; give images / 255, or uint8.")


def _find_layout(shape: Sequence[int], layout: str | None) -> str:
    """Tell channels-first from channels-last by where the 1 or 3 stands."""
    first, last = shape[0] in _CHANNELS, shape[-1] in _CHANNELS
    if layout is not None:
        if layout not in ("NCHW", "NHWC"):
            raise unknown_name("layout", layout, ["NCHW", "NHWC"])
        if not (first if layout == "NCHW" else last):
            place = "first" if layout == "NCHW" else "last"
            raise PumaError(f"layout {layout} needs 1 or 3 channels {place}, got images of shape {tuple(shape)}.")
        return layout
    if first and last:
        raise PumaError(
            f"images of shape {tuple(shape)} could be channels first or last; say layout='NCHW' or layout='NHWC'."
        )
    if not (first or last):
        raise PumaError(f"images must have 1 or 3 channels, first or last, got shape {tuple(shape)}.")
    return "NCHW" if first else "NHWC"


def _to_bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Round pixels in [0, 1] to whole grey values; bytes stay as they are."""
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    packed = np.empty(pixels.shape, dtype=np.uint8)
    rows = max(1, _CHUNK_BYTES // max(1, pixels[0].nbytes))
    for start in range(0, len(pixels), rows):
        packed[start : start + rows] = np.rint(pixels[start : start + rows] * 255)
    return packed


def _to_labels(labels: Array, count: int, class_names: Sequence[str] | None) -> NDArray[np.int32]:
    targets = _to_array(labels, "labels")
    if targets.ndim == 2 and targets.shape[1] > 1:
        raise PumaError(
            f"labels must be one integer per image, got shape {targets.shape}, which looks like one-hot rows or "
            "probabilities; give labels.argmax(1)."
        )
    if targets.dtype.kind == "f":
        way = "labels.long()" if isinstance(labels, Tensor) else "labels.astype(int)"
        raise PumaError(f"labels must be integers, got {targets.dtype}; convert with {way}.")
    if targets.ndim == 1 and len(targets) == count and count:
        low, high = int(targets.min()), int(targets.max())
        if low == 1 and high == (len(class_names) if class_names else high):
            raise PumaError(f"labels must count from 0, got 1 to {high}; give labels - 1.")
    return check_class_labels(targets, count, len(class_names) if class_names else 1 << 20)


def _list_names(class_names: Any) -> list[str] | None:
    if class_names is None:
        return None
    if isinstance(class_names, str) or not hasattr(class_names, "__iter__"):
        raise PumaError(f"class_names must be a list with a name for each label, got {class_names!r}.")
    return [str(name) for name in class_names]


def _name_classes(labels: NDArray[np.int32], class_names: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(str(name) for name in (class_names or range(max(2, int(labels.max()) + 1))))
    if len(set(names)) < len(names):
        raise PumaError(f"class names must differ, got {', '.join(names)}.")
    return names


def _to_origin(origin: OriginName | Origin | Array, count: int) -> NDArray[np.int8]:
    if isinstance(origin, str):
        if origin not in ("real", "generated"):
            raise unknown_name("origin", origin, ["real", "generated"])
        origin = Origin[origin.upper()]
    try:
        values = _to_array(origin, "origin")
    except PumaError:
        values = np.array(-1)
    if values.shape not in ((), (count,)) or not np.isin(values, [0, 1]).all():
        raise PumaError(f"origin must be 'real', 'generated', or 0 or 1 for each of the {count} images.")
    return np.broadcast_to(values, count).astype(np.int8)


def _split_item(item: Any, row: int) -> tuple[Any, Any]:
    """Take image and label from an item: a pair, or a mapping with these names."""
    if isinstance(item, Mapping):
        image = item.get("image", item.get("img"))
        if image is not None and "label" in item:
            return image, item["label"]
    elif isinstance(item, Sequence) and not isinstance(item, str) and len(item) >= 2:
        return item[0], item[1]
    raise PumaError(f"a dataset must give (image, label), its item {row} is {type(item).__name__}.")


def _read_labels(dataset: Any, rows: list[int]) -> Array:
    """Return every label, without reading every image where the dataset lists them (as torchvision's do)."""
    for name in ("targets", "labels"):
        listed = getattr(dataset, name, None)
        if listed is None or not hasattr(listed, "__len__") or len(listed) != len(dataset):
            continue
        some = rows[:: max(1, len(rows) // 16)]
        try:
            told = [int(listed[row]) for row in some]
        except (TypeError, ValueError, LookupError):  # words, or keyed by something else
            continue
        if told == [_read_label(dataset, row) for row in some]:
            return listed  # type: ignore[no-any-return]
    return np.array([_read_label(dataset, row) for row in range(len(dataset))])


def _read_label(dataset: Any, row: int) -> int:
    _, label = _split_item(dataset[row], row)
    try:
        number = int(label)
    except (TypeError, ValueError) as error:
        raise PumaError(f"a label must be an integer, that of item {row} is {type(label).__name__}.") from error
    if number != label:
        raise PumaError(f"a label must be an integer, that of item {row} is {label}.")
    return number
