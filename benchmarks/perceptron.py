"""The perceptron study: the fast solver beside a slow reference, and the time of the four figures."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from puma.perceptron.problem import PerceptronTask, PoolPruning, draw_training_set, measure_overlap
from puma.perceptron.students import fit_logistic, fit_logistic_slowly
from puma.perceptron.study_design import PAPER_FIGURES, PerceptronStudy
from puma.perceptron.study_run import run_study

ALPHAS = (0.5, 2.0, 8.0, 16.0)
PRUNINGS = (PoolPruning(), PoolPruning("pe", 0.1), PoolPruning("pd", 0.1))


def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    compare()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        jobs = os.cpu_count() or 1
        run_study(PerceptronStudy(figures=PAPER_FIGURES), Path(folder), jobs=jobs, progress=False)
        took = time.perf_counter() - begun
        print(f"four figures, 5720 students, 52 theory curves, {jobs} jobs: {took:.0f} s")
    print(f"load {os.getloadavg()[0]:.1f}")


def compare() -> None:
    print("seconds of processor time per student, and the largest relative difference of the error")
    for alpha in ALPHAS:
        times = np.zeros(2)
        differences = []
        for pruning in PRUNINGS:
            for eps in (0.0, 0.001, 0.01):
                drawn = draw_training_set(PerceptronTask(alpha, pruning), eps, seed=0)
                begun = time.process_time()
                fast = fit_logistic(drawn.samples, eps)
                middle = time.process_time()
                slow = fit_logistic_slowly(drawn.samples, eps)
                times += (middle - begun, time.process_time() - middle)
                ours, theirs = (measure_overlap(weights, drawn.teacher).error for weights in (fast.weights, slow))
                differences.append(abs(ours / theirs - 1))
        fast_time, slow_time = times / (3 * len(PRUNINGS))
        worst = max(differences)
        print(f"alpha {alpha:>4}: {fast_time:.4f} fast, {slow_time:.4f} slow, difference {worst:.1e}")


if __name__ == "__main__":
    main()
