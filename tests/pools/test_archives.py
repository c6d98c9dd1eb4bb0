"""Archives: the same members as Python's tarfile finds, every damage found, nothing allocated on a promise."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puma.errors import PumaError
from puma.pools.archives import check_member_name, iterate_members, open_stream, read_tar_files
from puma.pools.datasets import CIFAR10, read_cifar, read_cifar_pickle
from puma.pools.npz import read_npz

LIMIT = 1 << 24


def make_tar(contents: dict[str, bytes], kind: int = tarfile.GNU_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def list_members(content: bytes) -> list[tuple[str, bytes]]:
    def read(offset: int, size: int) -> bytes:
        return content[offset : offset + size]

    found = iterate_members(read, "x.tar", end=len(content))
    return [(member.name, read(member.offset, member.size)) for member in found if member.kind == "file"]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_that_tarfile_finds(kind: int) -> None:
    contents = {f"{'d' * depth}/{index}.jpg": b"x" * (index * 171) for index, depth in enumerate((1, 20, 90, 99))}
    if kind != tarfile.USTAR_FORMAT:
        contents |= {"a" * 300 + ".jpg": b"long", "bläulich/ß.png": b"not ASCII"}
    whole = make_tar(contents, kind)
    assert dict(list_members(whole)) == contents
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        places = [(member.name, member.offset_data, member.size) for member in tar]
    found = iterate_members(lambda offset, size: whole[offset : offset + size], "x.tar")
    assert [(member.name, member.offset, member.size) for member in found] == places


def test_sizes_in_base_256_and_links_and_folders() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind in (
            ("d", tarfile.DIRTYPE),
            ("l", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("p", tarfile.FIFOTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    whole = file.getvalue()
    kinds = [member.kind for member in iterate_members(lambda offset, size: whole[offset : offset + size], "x.tar")]
    assert kinds == ["folder", "link", "link", "special"]
    large = bytearray(make_tar({"a": b"abc"}))
    large[124:136] = b"\x80" + (3).to_bytes(11, "big")
    large[148:156] = b" " * 8
    large[148:156] = b"%06o\0 " % sum(large[:512])
    assert list_members(bytes(large)) == [("a", b"abc")]


def test_tars_that_are_cut_short_or_damaged_are_told() -> None:
    whole = make_tar({"a.jpg": b"x" * 1000, "b.jpg": b"y" * 700})
    for end in (0, 100, 512, 1400, 1536, 2048, 2700, 3072):
        with pytest.raises(PumaError, match=r"cut short|not a whole tar"):
            list_members(whole[:end])
    for place in range(512):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        with pytest.raises(PumaError, match="checksum is wrong"):
            list_members(bytes(flipped))


@pytest.mark.parametrize("flag", [b"L", b"x", b"g"])
def test_a_header_that_promises_gigabytes_is_refused(flag: bytes) -> None:
    header = bytearray(make_tar({"a": b""})[:512])
    header[124:136], header[156:157] = b"77777777777\0", flag
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(PumaError, match="a header of 8,589,934,591 bytes"):
        list_members(bytes(header) + bytes(1024))


def test_a_sparse_file_is_not_taken_for_a_file() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.jpg")
        member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.realsize": "1000000000000"}
        tar.addfile(member)
    assert list_members(file.getvalue()) == []


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a\\b"])
def test_names_that_lead_outside_are_refused(name: str) -> None:
    with pytest.raises(PumaError, match="names a file outside of it"):
        check_member_name(name, "x.tar")
    check_member_name("a..b/c.jpg", "x.tar")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_no_flipped_bit_of_a_compressed_archive_goes_unseen(tmp_path: Path, pack: Any) -> None:
    rng = np.random.default_rng(0)
    contents = {"data_batch_1": rng.bytes(5000), "other": rng.bytes(5000)}
    whole = pack(make_tar(contents))
    path = tmp_path / "x.tar"
    path.write_bytes(whole)
    assert read_tar_files(path, {"data_batch_1"}, "a tar", limit=LIMIT) == {"data_batch_1": contents["data_batch_1"]}
    for _ in range(100):
        place, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            found = read_tar_files(path, {"data_batch_1"}, "a tar", limit=LIMIT)
        except PumaError:
            continue
        # the time and the system in gzip's own header are the only bits that stand under no checksum
        assert pack is gzip.compress
        assert 3 < place < 10
        assert found == {"data_batch_1": contents["data_batch_1"]}
    path.write_bytes(whole[:-1])
    with pytest.raises(PumaError, match=r"x\.tar"):
        read_tar_files(path, {"data_batch_1"}, "a tar", limit=LIMIT)


def test_an_archive_that_unpacks_without_end_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(bytes(LIMIT), 1))
    with (
        pytest.raises(PumaError, match="more than 1,000,000 bytes when unpacked"),
        open_stream(path, "a tar", limit=1_000_000),
    ):
        pass
    path.write_bytes(gzip.compress(make_tar({"data_batch_1": bytes(LIMIT)}), 1))
    with pytest.raises(PumaError, match="too large"):
        read_tar_files(path, {"data_batch_1"}, "a tar", limit=1_000_000)


def test_a_pipe_never_blocks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PumaError, match="not a regular file"):
        read_cifar(tmp_path / "pipe", CIFAR10)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder/data_batch_1")
    with pytest.raises(PumaError, match="not a regular file"):
        read_cifar(tmp_path / "folder", CIFAR10)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 36) + b".",
        b"\x80\x02Np4000000000\n.",
    ],
    ids=["memo", "bytearray", "bytes", "text memo"],
)
def test_a_pickle_of_a_few_bytes_takes_no_gigabytes(content: bytes) -> None:
    with pytest.raises(PumaError, match="is not a CIFAR batch"):
        read_cifar_pickle(content, "x")
    assert read_cifar_pickle(pickle.dumps({b"a": [1, 2, 2]}, 2), "x") == {"a": [1, 2, 2]}


def write_header(path: Path, shape: tuple[int, ...], content: bytes) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    labels = io.BytesIO()
    np.save(labels, np.zeros(shape[0] if shape[0] < 10 else 1, dtype=np.int64))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("image.npy", header.getvalue() + content)
        archive.writestr("label.npy", labels.getvalue())


@pytest.mark.parametrize("shape", [(1, 60_000, 60_000, 3), (1 << 40, 8, 8, 3), (1, 0, 8, 3), (1, -8, -8, 3)])
def test_an_npz_whose_header_promises_more_than_it_holds(tmp_path: Path, shape: tuple[int, ...]) -> None:
    write_header(tmp_path / "x.npz", shape, bytes(100_000))
    with pytest.raises(PumaError, match="cannot be uint8 of shape"):
        read_npz(tmp_path / "x.npz", origin=1, class_names=None)


def test_bytes_behind_the_last_image_of_an_npz_are_told(tmp_path: Path) -> None:
    write_header(tmp_path / "x.npz", (2, 8, 8, 3), bytes(2 * 192 + 1))
    part = read_npz(tmp_path / "x.npz", origin=1, class_names=None)
    with pytest.raises(PumaError, match="goes on behind its last row"):
        list(part.chunks)


HOSTILE = """
import sys
from pathlib import Path
from puma.pools.decoding import decode_picture
try:
    decode_picture(Path(sys.argv[1]), 224, 3)
except ValueError as error:
    print("refused", error)
"""


def test_a_thin_strip_and_a_huge_picture_stay_within_half_a_gigabyte(tmp_path: Path) -> None:
    """Each in a process that gets no more memory than that beyond its start."""
    from PIL import Image

    Image.new("L", (1, 20_000)).save(tmp_path / "strip.png")
    Image.new("L", (8, 8)).save(tmp_path / "huge.png")
    huge = bytearray((tmp_path / "huge.png").read_bytes())
    huge[16:24] = struct.pack(">2I", 100_000, 100_000)
    huge[29:33] = struct.pack(">I", zlib.crc32(huge[12:29]))
    (tmp_path / "huge.png").write_bytes(huge)
    (tmp_path / "eps.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\nshowpage\n")
    for name, answer in (("strip", ""), ("huge", "refused"), ("eps", "refused")):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", HOSTILE, str(tmp_path / f"{name}.png")],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (3 << 29, 3 << 29)),
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(answer)
