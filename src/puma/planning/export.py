"""A plan for other people's loaders: keys, a bitmap, or the kept samples themselves as WebDataset, Parquet or .npz.

What is large is written in parts, each whole or not at all; a run that was cut short goes on with the parts it lacks.
"""

import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from puma.errors import PumaError, tell_missing
from puma.files import hash_json, read_json, replace_atomically, write_json
from puma.planning.plan import Plan
from puma.pools import Pool, ShardPictures, hash_key, is_picture, tell_suffix
from puma.progress import progress_bar
from puma.scores import Scores

ExportFormat = Literal["csv", "npy", "keys", "bitmap", "webdataset", "parquet", "npz"]
SUFFIX_FORMATS: dict[str, ExportFormat] = {
    ".csv": "csv", ".npy": "npy", ".txt": "keys", ".bitmap": "bitmap", ".npz": "npz",
}  # fmt: skip
_MANIFEST = "_export.json"  # readers of folders of Parquet pass over such names
_CHUNK_BYTES = 1 << 24  # of pixels in one go


@dataclass(frozen=True)
class KeptSamples:
    """The kept samples of a pool in the order in which they are written; ``margin`` if it was given."""

    pool: Pool
    positions: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def choose(cls, plan: Plan, pool: Pool, margins: Scores | None = None, shuffle: int | None = None) -> "KeptSamples":
        """Take what a plan keeps of its pool, shuffled by a seed if there is one."""
        keep, strength = plan.of(pool)
        positions = np.flatnonzero(keep.numpy())
        if not len(positions):
            raise PumaError("the plan keeps no sample; there is nothing to write.")
        if shuffle is not None:
            if shuffle < 0:
                raise PumaError(f"--shuffle must be at least 0, got {shuffle}.")
            positions = np.random.default_rng(shuffle).permutation(positions)
        columns = {
            "label": pool.labels[positions],
            "sample_id": pool.sample_id[positions],
            "strength": strength.numpy()[positions],
        }
        if margins is not None:
            columns["margin"] = margins.of(pool)[positions]
        return cls(pool, positions, columns)

    def key(self, place: int) -> str:
        """Return the key of a sample: as in its shard, or its id for a pool of pixels."""
        located = self._locate(place)
        return located[0].key(located[1]) if located else f"{int(self.columns['sample_id'][place]):09d}"

    def encoded(self, place: int) -> tuple[bytes, str]:
        """Return a picture as it lies in its shard, or pixels as PNG; and the ending of a file's name."""
        located = self._locate(place)
        if located is not None:
            pictures, row = located
            content = pictures.read_bytes(row)
            return content, tell_suffix(content[:16])
        with tell_missing("data"):
            from PIL import Image

        pixels = self.pool.batch([int(self.positions[place])]).images[0].permute(1, 2, 0).numpy()
        file = io.BytesIO()
        Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
        return file.getvalue(), ".png"

    def _locate(self, place: int) -> tuple[ShardPictures, int] | None:
        return self.pool.locate(int(self.positions[place]))


def export_keys(kept: KeptSamples, out: Path) -> Path:
    """Write the keys of the kept samples, one a line, with the bytes that they have in their shards."""

    def line(place: int) -> bytes:
        key = kept.key(place)
        if "\n" in key or "\r" in key:
            raise PumaError(
                f"the key {key!r} has a line break, so no list of lines can hold it; export another format."
            )
        return os.fsencode(f"{key}\n")

    with replace_atomically(out) as partial:
        partial.write_bytes(b"".join(map(line, range(len(kept)))))
    return out


def export_bitmap(plan: Plan, out: Path) -> Path:
    """Write a bit per row of the plan, the lowest bit of the first byte first: 1 is kept."""
    with replace_atomically(out) as partial:
        partial.write_bytes(np.packbits(plan.keep.numpy(), bitorder="little").tobytes())
    return out


def export_table(plan: Plan, out: Path, kind: str) -> Path:
    """Write the whole plan as .csv, or the rows of the kept samples as .npy."""
    with replace_atomically(out) as partial, partial.open("wb") as file:
        if kind == "npy":
            np.save(file, plan.keep.nonzero().squeeze(1).numpy())
        else:
            from pyarrow import csv

            csv.write_csv(
                pa.table({name: getattr(plan, name).numpy() for name in ("sample_id", "keep", "strength")}), file
            )
    return out


def export_webdataset(kept: KeptSamples, out: Path, *, shard_size: int, force: bool, progress: bool = False) -> Path:
    """Write ``kept-000000.tar`` and so on: per sample the picture, ``.cls`` and a ``.json`` with the other columns."""
    names, name = kept.pool.class_names, name_samples(kept)

    def write(path: Path, places: range) -> None:
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for place in places:
                content, suffix = kept.encoded(place)
                key = kept.key(place)
                row = {column: values[place].item() for column, values in kept.columns.items()}
                told = {**row, "class_name": names[row["label"]], "key": key}
                stem = name(place)
                for ending, body in (
                    (suffix, content),
                    (".cls", str(row["label"]).encode()),
                    (".json", json.dumps(told).encode()),
                ):
                    member = tarfile.TarInfo(stem + ending)
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))

    return _write_parts(kept, out, "webdataset", "kept-{:06d}.tar", write, shard_size, force=force, progress=progress)


def name_samples(kept: KeptSamples) -> Callable[[int], str]:
    """Return how samples are called in a WebDataset: by their keys, without dots in the last part, where it cuts names.

    The ending of a picture's name goes, unless two keys differ in nothing else; ids are the last resort.
    """

    def without_ending(place: int) -> str:
        folder, slash, base = kept.key(place).rpartition("/")
        stem, dot, ending = base.rpartition(".")
        return folder + slash + (stem if dot and is_picture(f"x.{ending}") else base).replace(".", "_")

    def whole(place: int) -> str:
        folder, slash, base = kept.key(place).rpartition("/")
        return folder + slash + base.replace(".", "_")

    for name in (without_ending, whole):
        hashes = np.fromiter((hash_key(name(place).encode("utf-8", "surrogateescape")) for place in range(len(kept))),
                             np.int64, len(kept))  # fmt: skip
        if len(np.unique(hashes)) == len(kept):
            return name
    return lambda place: str(int(kept.columns["sample_id"][place]))


def export_parquet(kept: KeptSamples, out: Path, *, shard_size: int, force: bool, progress: bool = False) -> Path:
    """Write ``part-000000.parquet`` and so on, with pictures as Hugging Face has them and the classes' names."""
    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(kept.pool.class_names), "_type": "ClassLabel"},
        **{name: {"dtype": "int64" if name == "sample_id" else "float32", "_type": "Value"}
           for name in kept.columns if name != "label"},
    }  # fmt: skip
    kinds = {"label": pa.int64(), "sample_id": pa.int64(), "strength": pa.float32(), "margin": pa.float32()}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([pa.field("image", image), *(pa.field(name, kinds[name]) for name in kept.columns)])
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})

    def write(path: Path, places: range) -> None:
        with (
            pa.OSFile(os.fsencode(path), "wb") as sink,  # type: ignore[arg-type]
            pq.ParquetWriter(
                sink, schema, compression="none", use_dictionary=False, write_page_checksum=True
            ) as writer,
        ):
            for start in range(places.start, places.stop, 100):
                rows = range(start, min(start + 100, places.stop))
                pictures = [_describe_picture(kept, place) for place in rows]
                columns = [
                    pa.array(values[rows.start : rows.stop], kinds[name]) for name, values in kept.columns.items()
                ]
                writer.write_table(pa.Table.from_arrays([pa.array(pictures, image), *columns], schema=schema))

    return _write_parts(kept, out, "parquet", "part-{:06d}.parquet", write, shard_size, force=force, progress=progress)


def _describe_picture(kept: KeptSamples, place: int) -> dict[str, Any]:
    """Return bytes and a path, which names the key; Parquet knows UTF-8 only, so other bytes are spelt out."""
    (content, suffix), key = kept.encoded(place), kept.key(place)
    key = os.fsencode(key).decode("utf-8", "backslashreplace")
    return {"bytes": content, "path": key if is_picture(key) else key + suffix}


def _write_parts(
    kept: KeptSamples,
    out: Path,
    kind: str,
    pattern: str,
    write: Callable[[Path, range], None],
    shard_size: int,
    *,
    force: bool,
    progress: bool,
) -> Path:
    """Write every part that is not there yet; a folder of another export is not touched without ``force``."""
    if shard_size < 1:
        raise PumaError(f"--shard-size must be at least 1, got {shard_size}.")
    described = {
        "format": f"puma-export-{kind}-1",
        "samples": len(kept),
        "shard_size": shard_size,
        "class_names": list(kept.pool.class_names),
        "columns": list(kept.columns),
        "content": _hash_kept(kept),
    }
    _claim_folder(out, described, force=force)
    starts = range(0, len(kept), shard_size)
    with progress_bar(f"export {out.name}", len(kept), enabled=progress) as advance:
        for number, start in enumerate(starts):
            places = range(start, min(start + shard_size, len(kept)))
            path = out / pattern.format(number)
            if not path.exists():
                with replace_atomically(path) as partial:
                    write(partial, places)
            advance(len(places))
    return out


def _hash_kept(kept: KeptSamples) -> str:
    """Hash of everything that is written, so that parts of one export never join those of another."""
    sums = {name: hash_json([values.tobytes().hex()]) for name, values in kept.columns.items()}
    return hash_json({"pool": kept.pool.fingerprint, **sums})


def _claim_folder(out: Path, described: dict[str, Any], *, force: bool) -> None:
    manifest = out / _MANIFEST
    if out.exists() and not (out.is_dir() and (manifest.is_file() or not any(out.iterdir()))):
        raise PumaError(f"{out} exists already and is no export of a plan; choose another folder.")
    if manifest.is_file():
        there = read_json(manifest, "the description of an export")
        if there == described:
            return
        if not force or not str(there.get("format")).startswith("puma-export-"):
            raise PumaError(f"{out} holds another export; choose another folder, or give --force to replace it.")
        shutil.rmtree(out)
    write_json(manifest, described)


def export_npz(kept: KeptSamples, out: Path, *, progress: bool = False) -> Path:
    """Write pixels and columns as the arrays of one .npz, streamed; what was decoded before a kill is kept."""
    height, width, channels = kept.pool.image_shape
    rows = max(1, _CHUNK_BYTES // (height * width * channels))
    parts = out.with_name(f".{out.name}.parts")

    def write(path: Path, places: range) -> None:
        batch = kept.pool.batch(kept.positions[places.start : places.stop])
        path.write_bytes(np.ascontiguousarray(batch.images.permute(0, 2, 3, 1).numpy()).data)

    _write_parts(kept, parts, "npz", "pixels-{:06d}", write, rows, force=True, progress=progress)
    with replace_atomically(out) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("image.npy", "w", force_zip64=True) as file:
            head = {"descr": "|u1", "fortran_order": False, "shape": (len(kept), height, width, channels)}
            np.lib.format.write_array_header_1_0(file, head)
            for part in sorted(parts.glob("pixels-*")):
                with part.open("rb") as pixels:
                    shutil.copyfileobj(pixels, file, 1 << 20)
        for name, values in kept.columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
    shutil.rmtree(parts)
    return out
