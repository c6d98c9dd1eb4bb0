"""The python layout of CIFAR is a pickle; read it without letting it run anything.

Two kinds of objects are allowed, arrays and their dtypes, and they are not numpy's: they only record what the file
says of them, so even numpy's own unpickling code is never driven by the file.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import PumaError


class _Recorded:
    """Stands for an array or a dtype: keeps what it was made with and the state set on it."""

    def __init__(self, *made_with: Any) -> None:
        self.made_with = made_with
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Recorded):
    pass


class _Dtype(_Recorded):
    pass


def _text(text: str, _encoding: str) -> bytes:
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _text,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


def read_cifar_pickle(content: bytes, source: Path | str) -> dict[str, Any]:
    """Return the dictionary in a CIFAR batch file, its arrays as uint8; anything else raises."""
    try:
        read = _Restricted(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(read, dict):
            raise pickle.UnpicklingError("it is not a dictionary")
        return {
            key.decode("latin1") if isinstance(key, bytes) else str(key): _plain(value) for key, value in read.items()
        }
    except PumaError:
        raise
    except Exception as error:  # a hostile or damaged pickle can raise anything
        raise PumaError(f"{source} is not a CIFAR batch ({error}); nothing in it was executed.") from error


def _plain(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    _version, shape, dtype, fortran_order, content = value.state
    if dtype.made_with[0] not in ("u1", b"u1", "uint8"):
        raise pickle.UnpicklingError(f"its array is {dtype.made_with[0]!r}, not uint8")
    array: NDArray[np.uint8] = np.frombuffer(content, dtype=np.uint8)
    return array.reshape(shape, order="F" if fortran_order else "C")
