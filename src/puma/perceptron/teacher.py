"""The teacher: along an axis, as in the literature, or in a random direction."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from puma.errors import unknown_name

TeacherKind = Literal["axis", "dense"]
TEACHERS: tuple[TeacherKind, ...] = get_args(TeacherKind)


def make_teacher(kind: TeacherKind, dimension: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a unit vector: the first axis, or a random direction."""
    if kind == "axis":
        axis: NDArray[np.float64] = np.eye(1, dimension)[0]
        return axis
    if kind == "dense":
        direction = rng.standard_normal(dimension)
        return direction / np.linalg.norm(direction)
    raise unknown_name("teacher", kind, list(TEACHERS))


def mean_l1_norm(kind: TeacherKind, dimension: int) -> float:
    """Return the L1 norm of a teacher, for a dense one its value in high dimension."""
    return 1.0 if kind == "axis" else float(np.sqrt(2 * dimension / np.pi))
