"""A generator's training steps and samples beside the bare passes that they need, on one thread."""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from puma.generation.edm import SolverConfig, denoise, measure_loss
from puma.generation.generator_folder import GeneratorConfig
from puma.generation.generator_training import draw_batch, make_state, read_images, train_generator_step
from puma.generation.image_sampling import BLOCK, draw_noise, sample_block
from puma.generation.unet import Condition
from puma.pools.writer import PoolPart, write_parts
from puma.processes import ProcessGroup

_ROUNDS = 15


def _time_both(one: Callable[[], object], two: Callable[[], object]) -> tuple[float, float]:
    """Return the median seconds of two functions called in turn, so that a busy machine is busy for both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for function, spent in zip((one, two), seconds, strict=True):
            begun = time.perf_counter()
            function()
            spent.append(time.perf_counter() - begun)
    return float(np.median(seconds[0][2:])), float(np.median(seconds[1][2:]))


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(640, 14, 14, 1)).astype(np.uint8)
    with TemporaryDirectory() as folder:
        part = PoolPart([(images, np.arange(640) % 10)], tuple("0123456789"), 640)
        pool = write_parts({"": part}, Path(folder) / "pool")
        config = GeneratorConfig()
        found, group = read_images(config, [pool]), ProcessGroup()
        state = make_state(config, found.inputs, group)
        fixed = draw_batch(0, found, config, group)

        def pass_bare() -> None:
            """Forward, backward and Adam on a batch that lies ready."""
            noisy = fixed.images + fixed.sigma.view(-1, 1, 1, 1) * fixed.noise
            denoised = denoise(lambda a, b: state.net(a, b, fixed.condition), noisy, fixed.sigma, 0.5)
            loss = measure_loss(denoised, fixed.images, fixed.sigma, 0.5).mean()
            state.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            state.optimizer.step()

        whole, bare = _time_both(
            lambda: train_generator_step(state, draw_batch(state.step, found, config, group), config), pass_bare
        )
        print(f"training   {config.batch_size / whole:7.0f} samples/s, {whole / bare - 1:+.1%} over the bare passes")
        solver, labels = SolverConfig(steps=6), torch.arange(BLOCK) % 10
        noisy, levels = torch.randn(BLOCK, 1, 14, 14).contiguous(memory_format=torch.channels_last), torch.zeros(BLOCK)

        @torch.no_grad()
        def pass_net() -> None:
            for _ in range(solver.passes):
                state.average(noisy, levels, Condition(labels))

        def sample() -> None:
            noise = draw_noise(0, range(BLOCK), (14, 14, 1))
            sample_block(state.average, noise, Condition(labels), 0.5, solver)

        whole, bare = _time_both(sample, pass_net)
        speed = BLOCK / whole * solver.passes / SolverConfig().passes
        print(f"sampling   {speed:7.1f} images/s at 35 passes, {whole / bare - 1:+.1%} over the bare passes")


if __name__ == "__main__":
    main()
