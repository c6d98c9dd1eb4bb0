"""The one-cycle schedule as a pure function of the step, so that nothing of it has to be saved."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate moves over training.

    Attributes:
        warmup: share of training during which the rate rises.
        start_divisor: the first rate is the highest one divided by this.
        final_divisor: the last rate is the first one divided by this.
        every: samples between two changes of the rate; 0 changes it at every step.
        low_momentum: momentum moves against the rate, from ``high_momentum`` down to this and back, if both are given.
        high_momentum: see ``low_momentum``.
    """

    warmup: float = 0.025
    start_divisor: float = 25.0
    final_divisor: float = 1e4
    every: int = 0
    low_momentum: float | None = None
    high_momentum: float | None = None


def one_cycle(step: int, steps: int, config: ScheduleConfig, *, lr: float, momentum: float) -> tuple[float, float]:
    """Return the learning rate and momentum of step ``step`` (from 0) of ``steps``: two halves of cosines."""
    top = config.warmup * steps - 1
    low_momentum = momentum if config.low_momentum is None else config.low_momentum
    high_momentum = momentum if config.high_momentum is None else config.high_momentum
    first = lr / config.start_divisor
    if step <= top:
        share = step / top if top > 0 else 1.0
        return cosine(first, lr, share), cosine(high_momentum, low_momentum, share)
    share = (step - top) / (steps - 1 - top) if steps - 1 > top else 1.0
    return cosine(lr, first / config.final_divisor, share), cosine(low_momentum, high_momentum, share)


def rate_at(
    step: int, steps: int, batch_size: int, config: ScheduleConfig, *, lr: float, momentum: float
) -> tuple[float, float]:
    """Return learning rate and momentum of a training step, which change every ``config.every`` samples."""
    if not config.every:
        return one_cycle(step, steps, config, lr=lr, momentum=momentum)
    periods = math.ceil(steps * batch_size / config.every)
    period = min(step * batch_size // config.every, periods - 1)
    return one_cycle(period, periods, config, lr=lr, momentum=momentum)


def cosine(begin: float, end: float, share: float) -> float:
    """Return the point at ``share`` (0 to 1) of a half cosine from ``begin`` to ``end``."""
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * share))
