"""Margins of a pool of which only a share is measured: the rest is predicted from one forward pass each.

Files in the folder of parts, each written whole, so that a killed run goes on:
``predict-random.parquet`` measured margins of a random share; ``predict-training.npz`` what forward passes tell of
it; ``part-*.parquet`` predictions; ``predict-doubtful-*.npz`` what forward passes tell of samples that may have to be
measured; ``predict-round-*`` the samples chosen for measuring, and their margins. Ranks share the measuring and the
forward passes; the choosing is done by one.
"""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from puma.errors import PumaError
from puma.files import replace_atomically
from puma.margins.compare import rank_correlation
from puma.margins.margins_file import Margins, read_margins, write_margins
from puma.margins.pool_driver import PartFiles, PoolTask, find_finished, measure_samples, read_batches
from puma.margins.predict_features import PassReader, Table, open_reader
from puma.margins.predict_fit import LEVEL, MOST, MarginPredictor, calibrate_half_width, fit_predictor
from puma.margins.predict_select import (
    ErrorModel,
    Expectation,
    PoolEstimate,
    PredictConfig,
    describe_expectation,
    learn_errors,
    plan_measuring,
)
from puma.margins.search.engine import Status
from puma.pools import to_unit
from puma.processes import ProcessGroup, join_processes
from puma.progress import Advance, progress_bar

Places = NDArray[np.int64]
_ROUNDS = 12  # at most, so that it ends
_SMALL_ROUND = 0.02  # of the pool: a rest as small as this is measured in one go
_DOUBT = 1e-3  # samples less likely than this to be on the wrong side are never looked at again


def predict_to_file(task: PoolTask, out: Path, *, resume: bool = True, progress: bool = False) -> Path:
    """Measure a random share, predict the rest, measure where it matters, write the file; return ``out``."""
    files = PartFiles(out, task)
    with join_processes(patient=True) as group:
        if find_finished(files, resume, group):
            return out
        with files.locked() if group.writes else contextlib.nullcontext():
            group.barrier()
            work = _PredictionWork(task, files, group, progress)
            work.measure_random()
            fitted = work.fit_random()
            work.predict_parts(fitted)
            group.barrier()
            rounds = work.refine(fitted) if work.config.refines else 0
            if group.writes:
                work.merge(fitted, rounds)
                files.clear()
            group.barrier()
    return out


@dataclasses.dataclass(frozen=True)
class _Fitted:
    """A predictor, with the measured samples it was fitted to."""

    predictor: MarginPredictor
    places: Places  # positions in the pool
    features: Table
    margin: NDArray[np.float64]

    def learn_errors(self, fraction: float) -> ErrorModel:
        """Learn the errors near the margin above which this share of the measured samples lies."""
        known = np.nan_to_num(self.margin, nan=-np.inf, posinf=1e30)
        threshold = float(np.quantile(known, 1 - fraction))
        return learn_errors(self.margin, self.predictor.held_margin, self.predictor.held_spread, threshold)


class _PredictionWork:
    """The stages of one prediction; every stage leaves files, and finds those of an earlier attempt."""

    def __init__(self, task: PoolTask, files: PartFiles, group: ProcessGroup, progress: bool) -> None:
        assert task.predicting is not None
        self.task, self.files, self.group = task, files, group
        self.config: PredictConfig = task.predicting
        self.progress = progress and group.writes
        self.count = task.provenance.pool_size
        files.find_missing(range(0, min(1, task.parts)))  # parts of another task raise before anything is measured
        size = math.ceil(self.config.measure * self.count)
        chosen = np.random.default_rng(self.config.seed).choice(self.count, size, replace=False)
        self.random: Places = np.sort(chosen)
        self.training: Places = np.sort(chosen[:MOST])

    def place(self, name: str) -> Path:
        """File of one stage."""
        return self.files.folder / f"predict-{name}"

    def measure_random(self) -> None:
        """Measure the random share."""
        if not self.place("random.parquet").exists():
            self._tell(f"measuring {len(self.random):,} of {self.count:,} samples at random")
        measure_samples(self.task, self.random, self.place("random.parquet"), progress=self.progress)

    def fit_random(self) -> _Fitted:
        """Fit a predictor to the random share; every rank does, from the same file."""
        path = self.place("training.npz")
        if self.group.writes and not path.exists():
            with self._open_reader() as reader:
                features = np.concatenate(list(self._read_features(reader, self.training)))
            _save_arrays(path, features=features)
        self.group.barrier()
        features = _load_arrays(path)["features"]
        measured = read_margins(self.place("random.parquet"))
        rows = np.searchsorted(self.random, self.training)
        margin = measured.margin.double().numpy()[rows]
        self._tell(f"fitting to {len(margin):,} measured samples")
        return _Fitted(fit_predictor(features, margin), self.training, features, margin)

    def _open_reader(self) -> contextlib.AbstractContextManager[PassReader]:
        examples = self.task.pool.batch(np.arange(min(8, self.count))).images
        return open_reader(self.task.model, to_unit(examples))

    def _read_features(self, reader: PassReader, places: Places) -> Iterator[Table]:
        some = self.task.pool.subset(places)
        for images, labels in read_batches(some, 0, len(some), self.task.provenance.batch_size, reader.classes):
            yield reader.read(images, labels).features

    def predict_parts(self, fitted: _Fitted) -> None:
        """Predict every sample of the parts that are this rank's and not there yet."""
        missing = self.files.find_missing(range(self.group.rank, self.task.parts, self.group.count))
        if not missing:
            return
        total = sum(stop - start for start, stop in map(self.task.span, missing))
        errors = fitted.learn_errors(self.config.prune_easy)
        threshold = float(np.quantile(np.nan_to_num(fitted.margin, nan=-1, posinf=1), 1 - self.config.prune_easy))
        with self._open_reader() as reader, progress_bar("predicting", total, enabled=self.progress) as advance:
            for part in sorted(missing):
                self._predict_part(part, reader, fitted.predictor, errors, threshold, advance)

    def _predict_part(
        self,
        part: int,
        reader: PassReader,
        predictor: MarginPredictor,
        errors: ErrorModel,
        threshold: float,
        advance: Advance,
    ) -> None:
        start, stop = self.task.span(part)
        tables, predictions, rivals, labels = [], [], [], []
        batches = read_batches(self.task.pool, start, stop, self.task.provenance.batch_size, reader.classes)
        for images, label in batches:
            reading = reader.read(images, label)
            tables.append(reading.features)
            predictions.append(reading.prediction)
            rivals.append(reading.rival)
            labels.append(label)
            advance(len(label))
        features = np.concatenate(tables)
        margin, spread = _predict_finite(predictor, features)
        count = stop - start
        if self.config.refines:
            doubtful = self._find_doubtful(margin, spread, errors, threshold)
            _save_arrays(self._doubtful_path(part), places=start + doubtful, features=features[doubtful])
        finite = np.isfinite(margin)
        status = np.where(finite, int(Status.PREDICTED), int(Status.NON_FINITE)).astype(np.int8)
        found = Margins(
            margin=torch.from_numpy(margin.astype(np.float32)),
            status=torch.from_numpy(status),
            label=torch.cat(labels),
            prediction=torch.cat(predictions),
            rival=torch.cat(rivals),
            forwards=torch.ones(count, dtype=torch.int32),
            backwards=torch.zeros(count, dtype=torch.int32),
            sample_id=torch.from_numpy(self.task.pool.number_rows(start, stop)),
            half_width=torch.from_numpy((np.abs(margin) * spread).astype(np.float32)),
        )
        write_margins(self.files.path(part), [found], self.task.described, predicted=True)

    def _find_doubtful(
        self, margin: NDArray[np.float64], spread: NDArray[np.float64], errors: ErrorModel, threshold: float
    ) -> Places:
        estimate = PoolEstimate(margin.astype(np.float32), spread.astype(np.float32))
        doubtful = np.zeros(len(margin), dtype=bool)
        if self.config.plan_agreement is not None:
            doubtful |= estimate.judge_sides(threshold, threshold, errors) > _DOUBT
        if self.config.strength_error is not None:
            doubtful |= estimate.judge_strengths(math.inf, self.config.eps, errors) > _DOUBT
        return np.flatnonzero(doubtful)

    def _doubtful_path(self, part: int) -> Path:
        return self.place(f"doubtful-{part:06d}.npz")

    def load_estimate(self) -> PoolEstimate:
        """Return the first predictions of all samples, with what was measured at random in their place."""
        margin = np.empty(self.count, dtype=np.float32)
        spread = np.empty(self.count, dtype=np.float32)
        for part in range(self.task.parts):
            start, stop = self.task.span(part)
            found = read_margins(self.files.path(part))
            assert found.half_width is not None
            margin[start:stop] = found.margin.numpy()
            width = found.half_width.numpy()
            spread[start:stop] = np.divide(width, np.abs(margin[start:stop]), out=np.zeros_like(width), where=width > 0)
        estimate = PoolEstimate(margin, spread)
        self._put_measured(estimate, self.random, self.place("random.parquet"))
        return estimate

    @staticmethod
    def _put_measured(estimate: PoolEstimate, places: Places, path: Path) -> None:
        estimate.margin[places] = read_margins(path).margin.numpy()
        estimate.spread[places] = 0

    def refine(self, fitted: _Fitted) -> int:
        """Measure the samples that decide over the plan, refitting in between; return the number of rounds."""
        for number in range(_ROUNDS):
            chosen = self._round_places(number)
            if self.group.writes and not chosen.exists():
                estimate, latest = self._estimate_after(fitted, number)
                errors = latest.learn_errors(self.config.prune_easy)
                expected, order = plan_measuring(estimate, errors, self.config)
                self._tell_expected(expected)
                rest = len(order) <= _SMALL_ROUND * self.count or number == _ROUNDS - 1
                take = order if rest else order[: len(order) // 2]  # a fit to half of them may spare the others
                _save_arrays(chosen, places=np.sort(take))
            self.group.barrier()
            places = _load_arrays(chosen)["places"]
            if not len(places):
                return number
            measure_samples(self.task, places, self._round_margins(number), progress=self.progress)
            self.group.barrier()
        return _ROUNDS

    def _round_places(self, number: int) -> Path:
        return self.place(f"round-{number}.npz")

    def _round_margins(self, number: int) -> Path:
        return self.place(f"round-{number}.parquet")

    def _estimate_after(self, fitted: _Fitted, rounds: int) -> tuple[PoolEstimate, _Fitted]:
        """Return what is known after some rounds: predictions of a new fit, measured margins in their place."""
        estimate = self.load_estimate()
        if not rounds:
            return estimate, fitted
        places = np.concatenate([_load_arrays(self._round_places(number))["places"] for number in range(rounds)])
        margins = [read_margins(self._round_margins(number)).margin.double().numpy() for number in range(rounds)]
        latest = self._refit(fitted, places, np.concatenate(margins))
        for part in range(self.task.parts):
            doubtful = _load_arrays(self._doubtful_path(part))
            if len(doubtful["places"]):
                margin, spread = _predict_finite(latest.predictor, doubtful["features"])
                estimate.margin[doubtful["places"]] = margin
                estimate.spread[doubtful["places"]] = spread
        self._put_measured(estimate, self.random, self.place("random.parquet"))
        for number in range(rounds):
            self._put_measured(
                estimate, _load_arrays(self._round_places(number))["places"], self._round_margins(number)
            )
        return estimate, latest

    def _refit(self, fitted: _Fitted, places: Places, margin: NDArray[np.float64]) -> _Fitted:
        """Fit again, to what was measured at random and in the rounds, as far as its features were kept."""
        order = np.argsort(places)
        places, margin = places[order], margin[order]
        found_places, found_features = [], []
        for part in range(self.task.parts):
            doubtful = _load_arrays(self._doubtful_path(part))
            inside = np.isin(doubtful["places"], places)
            found_places.append(doubtful["places"][inside])
            found_features.append(doubtful["features"][inside])
        known = np.concatenate(found_places)
        room = max(MOST - len(fitted.places), 0)
        some = np.random.default_rng(0).permutation(len(known))[:room]
        features = np.concatenate([fitted.features, np.concatenate(found_features)[some]])
        margins = np.concatenate([fitted.margin, margin[np.searchsorted(places, known[some])]])
        where = np.concatenate([fitted.places, known[some]])
        return _Fitted(fit_predictor(features, margins), where, features, margins)

    def merge(self, fitted: _Fitted, rounds: int) -> None:
        """Write the final file: predictions with calibrated half widths, measured margins in their place."""
        estimate, latest = self._estimate_after(fitted, rounds)
        errors = latest.learn_errors(self.config.prune_easy)
        expected, _ = plan_measuring(estimate, errors, self.config)
        doubtful = np.zeros(self.count, dtype=bool)
        if self.config.refines:
            for part in range(self.task.parts):
                doubtful[_load_arrays(self._doubtful_path(part))["places"]] = True
        measured = {"random.parquet": (self.random, 2)}  # forward passes besides the search's
        for number in range(rounds):
            measured[self._round_margins(number).name.removeprefix("predict-")] = (
                _load_arrays(self._round_places(number))["places"],
                1,
            )
        factors = self._calibrate(fitted, latest, estimate, errors, expected, doubtful, rounds)
        rows = {name: (places, read_margins(self.place(name)), extra) for name, (places, extra) in measured.items()}

        def parts() -> Iterator[Margins]:
            for part in range(self.task.parts):
                start, stop = self.task.span(part)
                found = read_margins(self.files.path(part))
                assert found.half_width is not None
                margin = torch.from_numpy(estimate.margin[start:stop])
                guessed = estimate.spread[start:stop] > 0  # measured ones may be infinite
                width = np.abs(np.where(guessed, estimate.margin[start:stop], 0)) * estimate.spread[start:stop]
                factor = np.where(doubtful[start:stop], factors[1], factors[0]).astype(np.float32)
                width *= np.where(guessed, factor, 0)  # it is infinite where a tenth of the searches do not cross
                found = dataclasses.replace(found, margin=margin, half_width=torch.from_numpy(width))
                for places, margins, extra in rows.values():
                    low, high = np.searchsorted(places, (start, stop))
                    _overlay(found, margins, low, high, torch.from_numpy(places[low:high] - start), extra)
                yield found

        told = self._tell_prediction(fitted, expected, sum(len(places) for places, _ in measured.values()))
        write_margins(self.files.out, parts(), {**self.task.described, "prediction": told}, predicted=True)

    def _calibrate(
        self,
        fitted: _Fitted,
        latest: _Fitted,
        estimate: PoolEstimate,
        errors: ErrorModel,
        expected: Expectation,
        doubtful: NDArray[np.bool_],
        rounds: int,
    ) -> tuple[float, float]:
        """Return the factors of half widths for samples never in doubt, and for those that were but stay predicted.

        Each is calibrated on random samples of its own kind, if there are enough; both on all of them otherwise.
        """
        margin, held = fitted.margin, fitted.predictor
        plain = calibrate_half_width(margin, held.held_margin, held.held_spread)
        if not rounds:
            return plain, plain
        size = len(fitted.places)
        kinds = doubtful[fitted.places]
        sure = _calibrate_some(margin, held.held_margin, held.held_spread, ~kinds, plain)
        again = latest.predictor.held_margin[:size], latest.predictor.held_spread[:size]
        cut = estimate.find_cut(self.config.prune_easy)
        held_out = PoolEstimate(again[0].astype(np.float32), again[1].astype(np.float32))
        left = estimate.judge_sides(cut, expected.threshold, errors)[estimate.spread > 0]
        stays = held_out.judge_sides(cut, expected.threshold, errors) <= left.max(initial=0)
        every = calibrate_half_width(margin, *again)
        return sure, _calibrate_some(margin, again[0], again[1], kinds & stays, every)

    def _tell_prediction(self, fitted: _Fitted, expected: Expectation, measured: int) -> dict[str, Any]:
        held, margin = fitted.predictor.held_margin, fitted.margin
        known = np.isfinite(held) & np.isfinite(margin)
        error = np.abs(np.log(margin[known] / held[known]))
        told = {
            "measured": measured,
            "level": LEVEL,
            "rank_correlation": rank_correlation(margin[known], held[known]),
            "median_error": float(np.median(error)),
            **describe_expectation(expected, self.config),
        }
        self._tell(
            f"{measured:,} measured ({measured / self.count:.1%}); held-out predictions: rank correlation "
            f"{told['rank_correlation']:.3f}, median error {told['median_error']:.1%}; expected of a plan that drops "
            f"{self.config.prune_easy:.0%}: {expected.agreement:.1%} alike, {expected.overlap:.1%} of those it drops, "
            f"strengths off by {expected.strength_error:.1%} of eps"
        )
        return told

    def _tell_expected(self, expected: Expectation) -> None:
        so_far = f"expected agreement {expected.agreement:.1%}, strengths off by {expected.strength_error:.1%} of eps"
        if not expected.needed:
            self._tell(f"{so_far}: as asked, nothing more to measure")
            return
        share = expected.needed / self.count
        self._tell(
            f"{so_far}; for what is asked about {expected.needed:,} more ({share:.1%}) are measured, rather less"
        )

    def _tell(self, sentence: str) -> None:
        if self.progress:
            print(f"margins: {sentence}.", file=sys.stderr, flush=True)


def _calibrate_some(
    margin: NDArray[np.float64],
    held_margin: NDArray[np.float64],
    held_spread: NDArray[np.float64],
    rows: NDArray[np.bool_],
    otherwise: float,
) -> float:
    if rows.sum() < 100:  # a tenth of them are beyond the level: fewer than ten tell too little
        return otherwise
    return calibrate_half_width(margin[rows], held_margin[rows], held_spread[rows])


def _overlay(found: Margins, measured: Margins, low: int, high: int, rows: torch.Tensor, extra: int) -> None:
    """Put measured margins in the place of predictions."""
    assert found.half_width is not None
    for name in ("margin", "status", "label", "prediction", "rival", "backwards"):
        getattr(found, name)[rows] = getattr(measured, name)[low:high]
    found.forwards[rows] = measured.forwards[low:high] + extra
    found.half_width[rows] = 0


def _predict_finite(predictor: MarginPredictor, features: Table) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predict samples; those whose logits are not finite get NaN."""
    margin, spread = np.full(len(features), np.nan), np.zeros(len(features))
    finite = np.isfinite(features).all(1)
    if finite.any():
        margin[finite], spread[finite] = predictor.predict(features[finite])
    return margin, spread


def _save_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    with replace_atomically(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise PumaError(f"{path} is damaged ({error}); remove it and run the same command again.") from error
