"""The stages of an experiment, each done once: a folder or file named after a hash of everything it depends on."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from puma.errors import PumaError
from puma.evaluation import evaluate_pool, has_evaluation, write_evaluation
from puma.experiments.images import Images, Library
from puma.experiments.locks import locked
from puma.experiments.presets import Setting
from puma.experiments.results import commit
from puma.experiments.spec import Measured, Model, Online, Planned, described
from puma.margins import measure_pool
from puma.models import load_model
from puma.planning import Plan
from puma.planning.build import Pruning, Strength, make_plan
from puma.pools import Origin, Pool, open_pools
from puma.processes import resolve_device
from puma.scores.table import open_scores, save_scores
from puma.training.config import OnlineConfig, TrainConfig, config_to_dict
from puma.training.outcomes import score_difficulty
from puma.training.run import create_run, ensure_run
from puma.training.run_folder import RunFolder

_MADE_BY = "made-by.json"


@dataclass(frozen=True)
class Workspace:
    """A folder of finished stages, and what stages are made of.

    Attributes:
        path: the folder; several experiments may share it, also at the same time.
        setting: data, nets and lengths.
        data: folder with the user's pools.
        processes: train and measure with so many processes of torchrun.
    """

    path: Path
    setting: Setting
    data: Path
    processes: int = 1

    @property
    def library(self) -> Library:
        """Where images come from."""
        return Library(self.data, self.path, self.setting)

    def images(self, model: Model) -> Images:
        """Return what a model is trained and tested on."""
        return self.library.images(model.generated)

    def trained(self, model: Model, seed: int) -> Path:
        """Return the run of a model, training it and whatever it builds on first."""
        pools = self.images(model).pools
        plan = None if model.planned is None else self.plan(model.planned, pools, seed)
        config = self.config(model, seed, pools)
        fingerprint = open_pools(pools).fingerprint
        parts: dict[str, Any] = {
            "config": config_to_dict(config),
            "pools": fingerprint,
            "plan": plan and _hash_of(plan),
        }
        if self.processes > 1:  # BN sees a process's share of the batch
            parts["processes"] = self.processes
        out = self.path / "runs" / f"{described(model)}-seed{seed}-{_key(parts)}"
        with locked(out) as lock:
            if self.processes == 1:
                ensure_run(config, pools, out, plan=plan)
            else:
                self._train_together(config, pools, out, plan, lock)
            if not (out / _MADE_BY).is_file():
                write_json(out / _MADE_BY, made_by())
        return out

    def made_at(self, stage: Path) -> str:
        """Return the commit of the code that finished a run or an evaluation; "" where that is not known."""
        try:
            return str(json.loads((stage / _MADE_BY).read_text(encoding="utf-8"))["commit"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def config(self, model: Model, seed: int, pools: Sequence[Path]) -> TrainConfig:
        """Return the whole configuration of a model's training."""
        base = self.setting.nets[model.net]
        real = len(Pool.open(pools[0]).positions_of(Origin.REAL))
        config = replace(base, seed=seed, held_out=min(base.held_out, real // 10))
        if model.generated == "none":
            config = replace(config, generated_fraction=0.0)
        if model.online is not None:
            config = replace(config, online=self._online(model.online))
        return config

    def margins(self, measured: Measured, pools: Sequence[Path], seed: int) -> Path:
        """Return the margins of pools, by a model that is trained first."""
        run = self.trained(measured.by, seed)
        pool, method = open_pools(pools), measured.method or self.setting.method
        norm = self.setting.nets["main"].attack.norm
        weights = _hash_of(run / "model.safetensors")
        key = _key({"model": weights, "pools": pool.fingerprint, "method": method, "norm": norm})
        out = self.path / "margins" / f"by-{described(measured.by)}-{method}-seed{seed}-{key}.parquet"
        with locked(out) as lock:
            if not out.is_file() and self.processes > 1:
                words = [*map(str, pools), "--model", str(run), "--method", method, "--norm", norm, "--out", str(out)]
                self._together("margins", *words, "--device", self._device, lock=lock)
            elif not out.is_file():
                model = self._model(run, pool)
                measure_pool(model, pool, out, method=method, norm=norm, progress=True, model_path=str(run))
        return out

    def difficulty(self, model: Model, seed: int) -> Path:
        """Return how often a training run had each sample wrong."""
        run = self.trained(model, seed)
        out = self.path / "scores" / f"{run.name}.parquet"
        with locked(out):
            return out if out.is_file() else save_scores(score_difficulty(run, show=True), out)

    def plan(self, planned: Planned, pools: Sequence[Path], seed: int) -> Path:
        """Return the plan for pools, making the scores it goes by first."""
        margins = self.margins(planned.margins, pools, seed) if planned.needs_margins else None
        counted = self.difficulty(planned.difficulty_of, seed) if planned.needs_difficulty else None
        eps = self.setting.eps
        pruning = Pruning(easy=planned.easy, difficult=planned.difficult, random=planned.random, seed=seed)
        strength = Strength(planned.strength, planned.eps * eps, planned.gap * eps, planned.weak_eps * eps)
        pool = open_pools(pools)
        files = [path and _hash_of(path) for path in (margins, counted)]
        rules = [asdict(pruning), asdict(strength), planned.score]
        out = self.path / "plans" / f"{_key({'pools': pool.fingerprint, 'rules': rules, 'files': files})}.parquet"
        with locked(out):
            if out.is_file():
                return out
            kind = "cd_clean" if planned.score == "margin" else planned.score
            with reading(counted):
                difficulty = None if counted is None else open_scores(counted, kind)
            with reading(margins):
                margin = None if margins is None else open_scores(margins, "margin")
            score = margin if planned.score == "margin" else difficulty
            made = make_plan(
                pool, pruning, strength, score=score, margin=margin, difficulty=difficulty, drop_failed=True
            )
            return made.save(out)

    def evaluated(self, model: Model, seed: int) -> Path:
        """Return the folder with a model's metrics.json on the test images."""
        run = self.trained(model, seed)
        test = self.images(model).test
        pool, eps = Pool.open(test), self.setting.eps
        config = replace(self.setting.evaluation, seed=seed, norm=self.setting.nets["main"].attack.norm)
        weights = _hash_of(run / "model.safetensors")
        key = _key({"model": weights, "pool": pool.fingerprint, "eps": eps, "config": asdict(config)})
        out = self.path / "evaluations" / f"{run.name}-{key}"
        with locked(out):
            if not has_evaluation(out):
                place = resolve_device(self._device)
                result = evaluate_pool(
                    self._model(run, pool), pool, eps, config, device=place, state_path=out / "state.json", show=True
                )
                write_evaluation(out, result.to_metrics(model=run.name, weights=None, pool=str(test)))
                write_json(out / _MADE_BY, made_by())
        return out

    @property
    def _device(self) -> str:
        return self.setting.nets["main"].compute.device

    def _model(self, run: Path, pool: Pool) -> nn.Module:
        with reading(run):
            loaded = load_model(str(run), pool.num_classes, channels=pool.image_shape[2])
        return loaded.to(resolve_device(self._device))

    def _online(self, online: Online) -> OnlineConfig:
        return OnlineConfig(
            mode=online.mode, prune_at=online.prune_at * self.setting.eps, prune_fraction=online.prune_fraction
        )

    def _train_together(
        self, config: TrainConfig, pools: Sequence[Path], out: Path, plan: Path | None, lock: int
    ) -> None:
        create_run(config, pools, out, plan=plan)
        if not RunFolder(out).model.is_file():
            self._together("train", "--resume", str(out), lock=lock)

    def _together(self, verb: str, *words: str, lock: int) -> None:
        """Run a verb of the command line in several processes; they hold the lock, should this process be killed."""
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}", "-m", "puma"]
        process = subprocess.Popen([sys.executable, *launch, verb, *words], pass_fds=(lock,))
        try:
            code = process.wait()
        except BaseException:  # interrupted: torchrun stops its processes when it is asked to, not when it is killed
            process.terminate()
            process.wait()
            raise
        if code:
            raise PumaError(
                f"puma {verb} with {self.processes} processes ended with code {code}, see above; "
                f"the same command goes on where it stopped."
            )


@contextmanager
def reading(path: Path | None) -> Iterator[None]:
    """Add to the error about a damaged stage what to do."""
    try:
        yield
    except PumaError as error:
        raise PumaError(f"{str(error).rstrip('.')}; delete {path}, and the same command makes it again.") from error


def made_by() -> dict[str, str]:
    """Return which code makes a stage."""
    return {"commit": commit(), "puma": version("puma-pruning"), "torch": version("torch")}


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def plan_counts(path: Path, eps: float) -> dict[str, float]:
    """Return what a plan does, as shares: kept, attacked less strongly than ``eps``, helped towards the label."""
    with reading(path):
        plan = Plan.open(path)
    kept = plan.strength[plan.keep]
    return {
        "kept_share": float(plan.keep.double().mean()),
        "weakened_share": float((kept.abs() < eps * (1 - 1e-6)).double().mean()),
        "helped_share": float((kept < 0).double().mean()),
    }


def _key(values: Mapping[str, Any]) -> str:
    """Hash what a stage depends on; another release of the code may compute otherwise, so it is part of it."""
    named = {"puma": version("puma-pruning"), **values}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:10]


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
