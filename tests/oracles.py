"""Exact answers that tests compare with: closed forms, linear and mixed-integer programs, all in float64."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp, nnls

Array = NDArray[np.float64]


def halfspaces(weight: Array, bias: Array, image: Array, label: int) -> tuple[Array, Array, bool]:
    """Affine model: rows (slant, gap) with gap + slant . delta = f_label - f_k for all rivals, and correctness."""
    rivals = np.delete(np.arange(len(bias)), label)
    slant = weight[label] - weight[rivals]
    gap = slant @ image + bias[label] - bias[rivals]
    return slant, gap, bool((gap > 0).all())


def linear_margin(weight: Array, bias: Array, image: Array, label: int, norm: str) -> float:
    """Right sample of an affine model without a box: the smallest gap / dual norm."""
    slant, gap, right = halfspaces(weight, bias, image, label)
    assert right
    dual = np.abs(slant).sum(1) if norm == "linf" else np.sqrt((slant**2).sum(1))
    return float((gap / dual).min())


def boxed_linear_margin(weight: Array, bias: Array, image: Array, label: int, norm: str) -> float:
    """Affine model within the box [0, 1]: a linear program (L_inf) or least-distance programming (L2), signed."""
    slant, gap, right = halfspaces(weight, bias, image, label)
    distance = _nearest_linf if norm == "linf" else _nearest_l2
    if right:  # leave through any one half-space
        return min(distance(-slant[k : k + 1], gap[k : k + 1], image) for k in range(len(gap)))
    return -distance(slant, -gap, image)


def _nearest_linf(rows: Array, needed: Array, image: Array) -> float:
    """Smallest r with rows @ delta >= needed, |delta| <= r, image + delta within [0, 1]."""
    count, size = rows.shape
    cost = np.r_[np.zeros(size), 1.0]
    eye = np.eye(size)
    below = np.c_[np.r_[-rows, eye, -eye], np.r_[np.zeros(count), -np.ones(2 * size)]]
    limits = np.r_[-needed, np.zeros(2 * size)]
    ranges = [*zip(-image, 1 - image, strict=True), (0.0, None)]
    solved = linprog(cost, A_ub=below, b_ub=limits, bounds=ranges)
    return float(solved.fun) if solved.fun is not None and solved.status == 0 else np.inf


def _nearest_l2(rows: Array, needed: Array, image: Array) -> float:
    """Smallest |delta| under the same constraints: Lawson and Hanson's reduction to non-negative least squares."""
    eye = np.eye(len(image))
    system = np.r_[rows, eye, -eye]
    limits = np.r_[needed, -image, image - 1]
    stacked = np.r_[system.T, limits[None]]
    goal = np.r_[np.zeros(len(image)), 1.0]
    multiplier, _ = nnls(stacked, goal, maxiter=100 * len(limits))
    residual = stacked @ multiplier - goal
    if np.abs(residual).max() < 1e-9:
        return np.inf
    return float(np.linalg.norm(residual[:-1] / residual[-1]))


Layers = Sequence[tuple[Array, Array]]


def relu_logits(layers: Layers, image: Array) -> Array:
    """Logits of a fully connected ReLU net."""
    for weight, bias in layers[:-1]:
        image = np.maximum(weight @ image + bias, 0)
    return np.asarray(layers[-1][0] @ image + layers[-1][1])


def relu_margin_linf(layers: Layers, image: Array, label: int) -> float:
    """Signed L_inf margin of a fully connected ReLU net within [0, 1], by mixed-integer programming."""
    logits = relu_logits(layers, image)
    rivals = [k for k in range(len(logits)) if k != label]
    if logits.argmax() == label:
        return min(_relu_distance(layers, image, [(k, label)]) for k in rivals)
    return -_relu_distance(layers, image, [(label, k) for k in rivals])


def _relu_distance(layers: Layers, image: Array, above: Sequence[tuple[int, int]]) -> float:
    """Smallest r such that logit a >= logit b for every pair (a, b) somewhere in the ball and the box.

    Variables: pixels, r, then for every hidden layer its outputs and one switch (0 or 1) each.
    """
    size = len(image)
    widths = [len(bias) for _, bias in layers[:-1]]
    total = size + 1 + 2 * sum(widths)
    radius = size
    rows: list[Array] = []
    lows: list[float] = []
    highs: list[float] = []

    def constrain(entries: Array, low: float, high: float) -> None:
        rows.append(entries)
        lows.append(low)
        highs.append(high)

    low_bound, high_bound = np.zeros(total), np.full(total, np.inf)
    high_bound[:size] = 1
    integral = np.zeros(total, dtype=np.int64)
    for pixel in range(size):
        for sign in (1.0, -1.0):
            row = np.zeros(total)
            row[pixel], row[radius] = sign, -1.0
            constrain(row, -np.inf, sign * image[pixel])
    inputs = np.arange(size)
    least, most = np.zeros(size), np.ones(size)
    start = size + 1
    for weight, bias in layers[:-1]:
        outputs = np.arange(start, start + len(bias))
        switches = outputs + len(bias)
        start += 2 * len(bias)
        floor = np.minimum(weight, 0) @ most + np.maximum(weight, 0) @ least + bias
        ceiling = np.maximum(weight, 0) @ most + np.minimum(weight, 0) @ least + bias
        for unit in range(len(bias)):
            row = np.zeros(total)
            row[outputs[unit]], row[inputs] = 1.0, -weight[unit]
            constrain(row, bias[unit], np.inf)  # output >= input of the unit
            row = row.copy()
            row[switches[unit]] = -floor[unit]
            constrain(row, -np.inf, bias[unit] - floor[unit])  # and equal to it while the switch is on
            row = np.zeros(total)
            row[outputs[unit]], row[switches[unit]] = 1.0, -max(ceiling[unit], 0.0)
            constrain(row, -np.inf, 0.0)  # output 0 while it is off
        integral[switches] = 1
        high_bound[switches] = 1
        inputs, least, most = outputs, np.maximum(floor, 0), np.maximum(ceiling, 0)
    weight, bias = layers[-1]
    for higher, lower in above:
        row = np.zeros(total)
        row[inputs] = weight[higher] - weight[lower]
        constrain(row, float(bias[lower] - bias[higher]), np.inf)
    cost = np.zeros(total)
    cost[radius] = 1
    solved = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), np.array(lows), np.array(highs)),
        integrality=integral,
        bounds=Bounds(low_bound, high_bound),
        options={"mip_rel_gap": 1e-6},
    )
    return float(solved.fun) if solved.status == 0 else np.inf
