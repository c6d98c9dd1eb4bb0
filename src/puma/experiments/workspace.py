"""The stages of an experiment, each done once: a folder or file named after a hash of everything it depends on."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from puma.errors import PumaError
from puma.evaluation import evaluate_pool, has_evaluation, write_evaluation
from puma.experiments.generated import GeneratedStages
from puma.experiments.images import ImageLibrary, SettingPools
from puma.experiments.presets import OWN_GENERATOR, ExperimentSetting
from puma.experiments.results import find_commit
from puma.experiments.spec import (
    REAL_ONLY,
    TRADES,
    GeneratorImages,
    MarginSpec,
    ModelSpec,
    OnlineSpec,
    OutsideModel,
    PlanSpec,
    name_model,
)
from puma.files import Link, hash_file, hash_json, lock, read_json, write_json
from puma.generation import SelectionConfig, filter_pool
from puma.margins import measure_pool, warn_of_model
from puma.models import fingerprint_model, remember_code
from puma.planning import Plan, PruneRule, StrengthRule, build_plan
from puma.pools import Origin, Pool, open_pools
from puma.processes import resolve_device
from puma.scores import open_scores, save_scores
from puma.training import (
    OnlineConfig,
    RunFolder,
    SoftPruningConfig,
    TrainConfig,
    create_run,
    ensure_run,
    find_init,
    load_model,
    score_difficulty,
    score_snapshots,
)

_SNAPSHOTS, _WINDOW = 12, 5  # models that a training keeps to be scored by; successive ones of a window
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
    setting: ExperimentSetting
    data: Path
    processes: int = 1

    @property
    def library(self) -> ImageLibrary:
        """Where images come from."""
        return ImageLibrary(self.data, self.path, self.setting)

    def find_pools(self, model: ModelSpec) -> SettingPools:
        """Return what a model is trained and tested on."""
        found = self._find_images(model)
        if len(found.pools) == 1 or not (model.noise or model.filtered):
            return found
        generated, notes = found.pools[-1], [*found.notes]
        if model.noise:
            generated = self.library.mislabel(generated, model.noise)
            notes.append(f"{100 * model.noise:g} % of the generated images were given a wrong label.")
        if model.filtered:
            generated = self._drop_doubted(generated)
            notes.append("generated images that a model of the real ones calls something else were left out.")
        return replace(found, pools=(*found.pools[:-1], generated), notes=tuple(notes))

    def _drop_doubted(self, generated: Path) -> Path:
        """Return the images of a pool that a model of the real ones alone, one for all seeds, does not doubt."""
        judge = self.train_model(REAL_ONLY, 0)
        key = _hash_key({"pool": Pool.open(generated).fingerprint, "judge": hash_file(RunFolder(judge).model)})
        out = self.path / "pools" / f"{generated.name}-filtered-{key}"
        with lock(out, wait=True):
            if not out.is_dir():
                filter_pool(generated, out, SelectionConfig(agree_with=str(judge)))
        return out

    def _find_images(self, model: ModelSpec) -> SettingPools:
        if isinstance(model.generated, GeneratorImages):
            return self.make_images(model.generated)
        asked = self.setting.generated.get(model.generated)
        if asked is not None and asked.pool == OWN_GENERATOR:
            unchanged = replace(self, setting=self.setting.before or self.setting)
            return unchanged.make_images(GeneratorImages(), asked.count)
        return self.library.find_pools(model.generated)

    def make_images(self, wanted: GeneratorImages, images: int | None = None) -> SettingPools:
        """Return the real images and those of a generator that is trained on them first, one for all seeds."""
        real = self.library.find_pools("none")
        pool = self.generated_stages.make_pool(wanted, images)
        band = "" if wanted.band is None else f" ({wanted.name.replace('-', ' ')} eps)"
        count = f"{len(Pool.open(pool)):,}"
        note = f"{count} generated images{band} are of a generator that was trained on the real ones alone."
        return SettingPools((*real.pools, pool), real.test, (*real.notes, note))

    def train_judge(self) -> Path:
        """Return a model that knows other images than those of the setting's generator."""
        other = None if self.setting.generator is None else self.setting.generator.judged_by
        setting = self.setting if other is None else replace(self.setting, generated={"usual": other})
        return replace(self, setting=setting).train_model(TRADES, 0)

    @property
    def generated_stages(self) -> GeneratedStages:
        """The stages of images of our own; a generator that is told margins needs them and their model first."""
        real = self.library.find_pools("none").pools
        if self.setting.generator is not None and not self.setting.generator.tells_margins:
            return GeneratedStages(self.path, self.setting, real[0])
        margins = self.measure_margins(MarginSpec(REAL_ONLY), real, seed=0)
        return GeneratedStages(self.path, self.setting, real[0], margins, self.train_model(REAL_ONLY, 0))

    def train_model(self, model: ModelSpec, seed: int) -> Path:
        """Return the run of a model, training it and whatever it builds on first."""
        pools = self.find_pools(model).pools
        plan = None if model.plan is None else self.make_plan(model.plan, pools, seed)
        config = self.resolve_config(model, seed, pools)
        fingerprint = open_pools(pools).fingerprint
        described = list_changes(config)
        if config.init:  # the same weights are the same wherever they lie
            described["init"] = hash_file(find_init(config.init))
        parts: dict[str, Any] = {
            "config": described,
            "pools": fingerprint,
            "plan": plan and hash_file(plan),
        }
        if self.processes > 1:  # BN sees a process's share of the batch
            parts["processes"] = self.processes
        out = self.path / "runs" / f"{name_model(model)}-seed{seed}-{_hash_key(parts)}"
        with lock(out, wait=True) as held:
            if self.processes == 1:
                ensure_run(config, pools, out, plan=plan)
            else:
                self._train_in_processes(config, pools, out, plan, held)
            if not (out / _MADE_BY).is_file():
                write_json(out / _MADE_BY, _describe_code())
        return out

    def read_commit(self, stage: Path) -> str:
        """Return the commit of the code that finished a run or an evaluation; "" where that is not known."""
        try:
            return str(read_json(stage / _MADE_BY, "what made a stage")["commit"])
        except (PumaError, KeyError):
            return ""

    def resolve_config(self, model: ModelSpec, seed: int, pools: Sequence[Path]) -> TrainConfig:
        """Return the whole configuration of a model's training."""
        base = self.setting.nets[model.net]
        real = len(Pool.open(pools[0]).positions_of(Origin.REAL))
        config = replace(base, seed=seed, held_out=min(base.held_out, real // 10))
        if model.generated == "none" or len(pools) == 1:
            config = replace(config, generated_fraction=0.0)
        if self.setting.begins_with_weights:
            config = replace(config, init=str(self.library.weights.resolve()))
        config = replace(config, samples_seen=max(int(model.length * config.samples_seen), config.batch_size))
        config = replace(config, plan_from=model.plan_from, soft_pruning=SoftPruningConfig(model.soft))
        if model.snapshots:
            config = replace(config, snapshot_every=max(config.samples_seen // _SNAPSHOTS, 1))
        if model.online is not None:
            config = replace(config, online=self._resolve_online(model.online))
        return config

    def measure_margins(self, spec: MarginSpec, pools: Sequence[Path], seed: int) -> Path:
        """Return the margins of pools, by a model that is trained first unless it comes from outside."""
        pool, method = open_pools(pools), spec.method or self.setting.method
        norm = self.setting.nets["main"].attack.norm
        if isinstance(spec.by, OutsideModel):
            by, name = spec.by, f"by-outside-{method}"  # the same for every seed
            identity = fingerprint_model(self._load_model(by, pool), pool.image_shape)
        else:
            run = self.train_model(spec.by, seed)
            by, name = OutsideModel(str(run)), f"by-{name_model(spec.by)}-{method}-seed{seed}"
            identity = hash_file(RunFolder(run).model)
        key = _hash_key({"model": identity, "pools": pool.fingerprint, "method": method, "norm": norm})
        out = self.path / "margins" / f"{name}-{key}.parquet"
        with lock(out, wait=True) as held:
            if not out.is_file() and self.processes > 1:
                words = [*map(str, pools), "--model", by.source, "--method", method, "--norm", norm, "--out", str(out)]
                words += ["--weights", by.weights] if by.weights else []
                if Path(by.source).is_dir():
                    RunFolder(Path(by.source)).check_code()
                    words.append("--trust-code")
                self._run_processes("margins", *words, "--device", self._device, held=held)
            elif not out.is_file():
                model = self._load_model(by, pool)
                found = measure_pool(model, pool, out, method=method, norm=norm, progress=True, model_path=by.source)
                for sentence in warn_of_model(found.margin.numpy(), pool.num_classes):
                    print(f"puma: warning: {sentence}.", file=sys.stderr)
        return out

    def count_difficulty(self, model: ModelSpec, seed: int) -> Path:
        """Return how often a training run had each sample wrong."""
        run = self.train_model(model, seed)
        out = self.path / "scores" / f"{run.name}.parquet"
        with lock(out, wait=True):
            return out if out.is_file() else save_scores(score_difficulty(run, show=True), out)

    def watch_training(self, model: ModelSpec, seed: int) -> Path:
        """Return the input gradients and the uncertainty of every sample, over the models that a training kept."""
        run = self.train_model(model, seed)
        out = self.path / "scores" / f"{run.name}-dynamics.parquet"
        with lock(out, wait=True):
            return out if out.is_file() else save_scores(score_snapshots(run, window=_WINDOW, show=True), out)

    def make_plan(self, spec: PlanSpec, pools: Sequence[Path], seed: int) -> Path:
        """Return the plan for pools, making the scores it goes by first."""
        margins = self.measure_margins(spec.margins, pools, seed) if spec.needs_margins else None
        counted = self.count_difficulty(spec.difficulty_of, seed) if spec.needs_difficulty else None
        watched = None if spec.watched is None else self.watch_training(spec.watched, seed)
        eps = self.setting.eps
        pruning = PruneRule(spec.easy, spec.difficult, spec.random, seed=seed, beyond=spec.beyond,
                            stratified=spec.stratified)  # fmt: skip
        strength = StrengthRule(spec.strength, spec.eps * eps, spec.gap * eps, spec.weak_eps * eps, floor=spec.floor)
        pool = open_pools(pools)
        files = [path and hash_file(path) for path in (margins, counted, *([watched] if watched else []))]
        rules = [list_changes(pruning), list_changes(strength), spec.score]
        out = self.path / "plans" / f"{_hash_key({'pools': pool.fingerprint, 'rules': rules, 'files': files})}.parquet"
        with lock(out, wait=True):
            if out.is_file():
                return out
            kind = spec.score if spec.score.startswith("cd_") else "cd_clean"
            with explain_damage(counted):
                difficulty = None if counted is None else open_scores(counted, kind)
            with explain_damage(margins):
                margin = None if margins is None else open_scores(margins, "margin")
            with explain_damage(watched):
                dynamics = None if watched is None else open_scores(watched, spec.score)
            score = margin if spec.score == "margin" else dynamics or difficulty
            made = build_plan(
                pool, pruning, strength, score=score, margin=margin, difficulty=difficulty, drop_failed=True
            )
            return made.save(out)

    def evaluate_model(self, model: ModelSpec, seed: int, *, autoattack: bool = False) -> Path:
        """Return the folder with a model's metrics.json on the test images, or of AutoAttack on some of them."""
        run = self.train_model(model, seed)
        test = self.find_pools(model).test
        pool, eps = Pool.open(test), self.setting.eps
        config = replace(self.setting.evaluation, seed=seed, norm=self.setting.nets["main"].attack.norm)
        if autoattack:
            config = replace(config, attacks=("clean", "autoattack"), max_samples=self.setting.autoattack_samples)
        weights = hash_file(RunFolder(run).model)
        key = _hash_key({"model": weights, "pool": pool.fingerprint, "eps": eps, "config": list_changes(config)})
        out = self.path / "evaluations" / f"{run.name}-{key}"
        with lock(out, wait=True):
            if not has_evaluation(out):
                place = resolve_device(self._device)
                result = evaluate_pool(
                    self._load_model(OutsideModel(str(run)), pool),
                    pool,
                    eps,
                    config,
                    device=place,
                    state_path=out / "state.json",
                    show=True,
                )
                links = [Link("weights", "weights", weights, str(RunFolder(run).model.resolve()))]
                told = {"model": run.name, "weights": None, "pool": str(test)}
                write_evaluation(out, result.to_metrics(model_path=str(run.resolve()), links=links, **told))
                write_json(out / _MADE_BY, _describe_code())
        return out

    @property
    def _device(self) -> str:
        return self.setting.nets["main"].compute.device

    def _load_model(self, by: OutsideModel, pool: Pool) -> nn.Module:
        made_here = Path(by.source).is_relative_to(self.path)
        with explain_damage(Path(by.source)) if made_here else nullcontext():
            loaded = load_model(by.source, pool.num_classes, weights=by.weights, image_shape=pool.image_shape)
        return loaded.to(resolve_device(self._device))

    def _resolve_online(self, online: OnlineSpec) -> OnlineConfig:
        return OnlineConfig(
            mode=online.mode,
            prune_at=online.prune_at * self.setting.eps,
            prune_fraction=online.prune_fraction,
            margins_by=online.margins_by,
            per_class=online.per_class,
        )

    def _train_in_processes(
        self, config: TrainConfig, pools: Sequence[Path], out: Path, plan: Path | None, held: int
    ) -> None:
        create_run(config, pools, out, plan=plan)
        if not RunFolder(out).model.is_file():
            remember_code(config.model)
            RunFolder(out).check_code()
            self._run_processes("train", "--resume", str(out), "--trust-code", held=held)

    def _run_processes(self, verb: str, *words: str, held: int) -> None:
        """Run a verb of the command line in several processes; they hold the lock, should this process be killed."""
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}", "-m", "puma"]
        process = subprocess.Popen([sys.executable, *launch, verb, *words], pass_fds=(held,))
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
def explain_damage(path: Path | None) -> Iterator[None]:
    """Add to the error about a damaged stage what to do."""
    try:
        yield
    except PumaError as error:
        raise PumaError(f"{str(error).rstrip('.')}; delete {path}, and the same command makes it again.") from error


def _describe_code() -> dict[str, str]:
    """Return which code makes a stage."""
    return {"commit": find_commit(), "puma": version("puma-pruning"), "torch": version("torch")}


def summarise_plan(path: Path, eps: float) -> dict[str, float]:
    """Return what a plan does, as shares: kept, attacked less strongly than ``eps``, helped towards the label."""
    with explain_damage(path):
        plan = Plan.open(path)
    kept = plan.strength[plan.keep]
    return {
        "kept_share": float(plan.keep.double().mean()),
        "weakened_share": float((kept.abs() < eps * (1 - 1e-6)).double().mean()),
        "helped_share": float((kept < 0).double().mean()),
    }


def list_changes(settings: Any) -> dict[str, Any]:
    """Return the settings of a dataclass that are not at their default, so that a new setting keeps old stages."""

    def compare(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        changed = {name: value for name, value in values.items() if value != defaults[name]}
        return {
            name: compare(value, defaults[name]) if isinstance(value, dict) else value
            for name, value in changed.items()
        }

    return compare(asdict(settings), asdict(type(settings)()))


def _hash_key(values: Mapping[str, Any]) -> str:
    """Hash what a stage depends on; another release of the code may compute otherwise, so it is part of it."""
    named = {"puma": version("puma-pruning"), **values}
    return hash_json(named)[:10]
