"""``puma run``: data of one's own, changes, the size of the paper, bad input."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conftest import Run
from puma.experiments import EXPERIMENTS, PAPER
from puma.experiments.presets import OWN_GENERATOR, GeneratedImages, find_setting
from puma.experiments.results import read_results_file
from puma.experiments.spec import GeneratedAmount, NetRole
from puma.experiments.workspace import Workspace
from puma.generation import GeneratorFolder
from puma.margins import measure_margins, read_margins
from puma.models import build
from puma.pools import Origin, Pool, to_unit
from puma.pools.writer import PoolPart, write_parts
from puma.report.experiment_record import read_record
from puma.training import TrainConfig
from puma.training.run_folder import RunFolder, load_model

SUMMARY = {"TRADES", "PUMA 0 %", "PUMA 10 %", "PUMA 20 %", "PE 20 %, eps for all", "random 20 %"}
CLASSES = [f"class{label}" for label in range(10)]


def write(folder: Path, count: int, shape: tuple[int, int, int], origin: int = 0) -> None:
    rng = np.random.default_rng(count)
    labels = np.arange(count) % 10
    images = rng.integers(256, size=(count, *shape)).astype(np.uint8)
    write_parts({"": PoolPart([(images, labels)], CLASSES, count, origin)}, folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with tiny pools where the presets look for CIFAR-10 and generated images."""
    folder = tmp_path_factory.mktemp("tiny") / "data"
    write(folder / "cifar10/train", 20, (32, 32, 3))
    write(folder / "cifar10/test", 20, (32, 32, 3))
    write(folder / "cifar10-generated-1m", 10, (32, 32, 3), origin=1)
    return folder


def places(data: Path) -> list[str]:
    return ["--data", str(data), "--work", str(data.parent / "work"), "--out", str(data.parent / "results")]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("tab-gap", "gap eps/8"),
        ("tab-summary", "PUMA 20 %"),
        ("tab-double-pruning", "PE 22 % + PD 12 %"),
        ("tab-margin-difficult", "margin if always wrong"),
        ("tab-online", "online, pruned at 3.25 eps"),
        ("tab-online", "online, ours, 20 %"),
        ("fig-models", "second net, PUMA 10 %"),
    ],
)
def test_the_papers_size_takes_real_steps(name: str, row: str, data: Path, puma: Run) -> None:
    """The paper's nets, the whole chain: margin model, margins, plan, training, attack; only lengths are cut."""
    changes = ["--samples-seen", "2", "--batch-size", "2", "--test-samples", "2", "--attacks", "clean"]
    code, said, err = puma("run", name, "--preset", "paper", "--rows", row, *changes, *places(data))
    assert code == 0, err
    lines = read_results_file(data.parent / f"results/{name}.csv")
    assert {line.origin.changed for line in lines} == {"samples_seen 2, batch_size 2, test_samples 2"}
    assert {line.quantity for line in lines} >= {"clean_accuracy", "robust_accuracy"}
    if name == "tab-gap":
        (kept,) = [line for line in lines if line.quantity == "kept_share"]
        assert kept.value == 0.8
    assert lines[0].row in said


@pytest.mark.parametrize("name", [name for name in PAPER if name != "tab-margin-model"])
def test_the_papers_size_can_be_told_without_data(name: str, tmp_path: Path, puma: Run) -> None:
    theory = name.startswith(("fig1", "fig2", "fig3", "fig4"))
    words = [] if theory else ["--batch-size", "1"]  # a short trial takes less time
    code, said, err = puma("run", name, "--preset", "paper", "--dry-run", "--data", str(tmp_path / "none"), *words)
    assert code == 0, err
    if not theory:
        assert ", eps 8/255; changed: batch_size 1\n" in said
        assert "resnet18" in said
        wanted = "ImageNet-21K-100, 224 px" if name == "tab-imagenet" else "CIFAR-10"
        assert f"missing      {wanted} is not at" in said
        assert ("16,050,000" if name == "tab-imagenet" else "0,000,000") + " samples in all" in said
    assert not (tmp_path / "none").exists()


def test_small_real_uses_other_real_images_as_generated_ones_and_says_so(tmp_path: Path, puma: Run) -> None:
    write(tmp_path / "more/fashion-mnist-14px/train", 7050, (14, 14, 1))
    write(tmp_path / "more/fashion-mnist-14px/test", 20, (14, 14, 1))
    changes = ["--samples-seen", "512", "--test-samples", "10"]
    words = ["run", "tab-summary", "--preset", "small-real", "--rows", "TRADES", *changes, *places(tmp_path / "more")]
    code, said, _ = puma(*words, "--dry-run")
    assert (code, "generator " in said) == (0, False)
    code, _, err = puma(*words)
    assert code == 0, err
    folder = tmp_path / "work/experiments/tab-summary-small-real-fashion-mnist-14px-samples_seen-512-test_samples-10"
    text = (folder / "experiment.json").read_text(encoding="utf-8")
    assert "7,000 of the 7,050 real training images are used as real ones." in text
    assert "50 other real training images play the generated ones." in text


def test_small_makes_its_generated_images_itself(tmp_path: Path, puma: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter one: the generator learns the real images alone, and is the same for trainings of another length."""
    data = tmp_path / "data"
    for part in ("train", "test"):
        write(data / "fashion-mnist-14px" / part, 260, (14, 14, 1))
    found = find_setting("small")
    assert found.generator is not None
    nets: dict[NetRole, TrainConfig] = {
        "main": replace(found.nets["main"], samples_seen=512, held_out=20, batch_size=128)
    }
    generator = replace(found.generator, samples_seen=128, images=40, judged_by=GeneratedImages("none", 60))
    images: dict[GeneratedAmount, GeneratedImages] = {"usual": GeneratedImages(OWN_GENERATOR, 40)}
    short = replace(found, real=200, nets=nets, generated=images, generator=generator)
    monkeypatch.setattr("puma.experiments.presets.SETTINGS", (short,))
    words = ["run", "tab-summary", "--rows", "TRADES", "PUMA 20 %", "--test-samples", "10", *places(data)]
    code, said, err = puma(*words, "--dry-run")
    assert code == 0, err
    assert "fashion-14px is trained first, on 128 samples of the real images" in said
    assert "then it makes 40 images: 12 min and 0.6 s on one core; once per work folder" in said
    assert not (tmp_path / "work").exists()
    code, _, err = puma(*words)
    assert code == 0, err
    record = next((tmp_path / "work/experiments").glob("*/experiment.json"))
    text = record.read_text(encoding="utf-8")
    assert "200 of the 260 real training images are used as real ones." in text
    assert "40 generated images are of a generator that was trained on the real ones alone." in text
    (made,) = (tmp_path / "work/generators").glob("[0-9a-f]*")
    inputs = GeneratorFolder(made).read()[1]
    assert inputs.pool_fingerprint == Pool.open(tmp_path / "work/pools" / Path(inputs.pools[0]).name).fingerprint
    (pool,) = (tmp_path / "work/pools").glob("generated-any-*")
    assert set(Pool.open(pool).origin) == {Origin.GENERATED}
    for run in (tmp_path / "work/runs").glob("[a-z]*"):
        with_generated = [str(pool.resolve())] if "none-generated" not in run.name else []
        assert list(RunFolder(run).read()[1].pools[1:]) == with_generated

    def never(*_: object, **__: object) -> None:
        raise AssertionError("images were made again")

    monkeypatch.setattr("puma.experiments.generated.train_generator", never)
    monkeypatch.setattr("puma.experiments.generated.sample_pool", never)
    code, _, err = puma(*words, "--samples-seen", "256", "--eps", "0.03", "--model", "small-14px-narrow")
    assert code == 0, err
    judge = RunFolder(Workspace(tmp_path / "work", short, data).train_judge())
    assert "stand-in-60" in judge.read()[1].pools[1]  # other images than the generator's


def test_small_takes_generated_images_where_they_are(tmp_path: Path, puma: Run) -> None:
    data = tmp_path / "data"
    write(data / "cifar10/train", 60, (32, 32, 3))
    write(data / "cifar10/test", 20, (32, 32, 3))
    write(data / "cifar10-generated", 30, (32, 32, 3), origin=1)
    changes = ["--samples-seen", "256", "--test-samples", "10"]
    words = ["run", "tab-summary", "--dataset", "cifar10", "--rows", "TRADES", *changes, *places(data)]
    code, _, err = puma(*words)
    assert code == 0, err
    (record,) = (tmp_path / "work/experiments").glob("*/experiment.json")
    assert "cifar10-generated has 30 of the 10,000 asked for." in record.read_text(encoding="utf-8")
    (data / "cifar10-generated").rename(data / "elsewhere")
    code, _, err = puma(*words)
    assert (code, f"generated images are not at {data}/cifar10-generated; import them" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tab-gab"], "unknown experiment 'tab-gab'; did you mean 'tab-gap'"),
        ([], "name at least one experiment; puma list shows them."),
        (
            ["tab-gap", "--preset", "smal"],
            "unknown preset 'smal'; did you mean 'small' or 'small-real'? known: smoke, small, "
            "paper, small-real, cifar10-eps2, cifar10-eps8, cifar10-eps2-scratch.",
        ),
        (["fig1", "--preset", "smal"], "unknown preset 'smal'; did you mean 'small'?"),
        (["tab-gap", "--dataset", "cifar100"], "unknown data set of preset small 'cifar100'; did you mean 'cifar10'?"),
        (["tab-gap", "--rows", "gap"], "unknown row of tab-gap 'gap'; did you mean 'no gap'"),
        (["tab-gap", "--seeds", "0"], "give at least one seed, got 0."),
        (["tab-gap", "--seeds", "-3", "--dry-run"], "give at least one seed, got -3."),
        (["fig1", "--eps", "3"], "fig1 takes --preset and --seeds only"),
        (["fig1", "tab-gap", "--rows", "foo"], "fig1 takes --preset and --seeds only"),
        (["tab-gap", "--preset", "smoke", "--device", "cuda"], "device 'cuda' is not there"),
        (["tab-gap", "--processes", "0"], "--processes must be at least 1, got 0."),
        (["tab-gap", "--samples-seen", "0"], "samples_seen must be positive"),
        (["tab-gap", "--test-samples", "-1"], "--test-samples must not be negative, got -1."),
        (["tab-gap", "--autoattack-samples", "-1"], "--autoattack-samples must not be negative, got -1."),
        (["tab-gap", "--init", "gone.safetensors"], "--init gone.safetensors is not there"),
        (
            ["tab-summary", "--preset", "cifar10-eps8"],
            "the weights of a robust resnet4b are not at none/robust_cifar10_eps8.safetensors; put some there",
        ),
        (["tab-gap", "--eps", "0"], "attack.eps, attack.step_size and attack.step_ratio must be positive"),
        (["tab-gap", "--preset", "smoke", "--method", "deepfol"], "unknown method 'deepfol'; did you mean 'deepfool'"),
        (
            ["tab-gap"],
            "Fashion-MNIST, 14 px is not at none/fashion-mnist-14px; import it with: "
            "puma data import fashion-mnist FOLDER --pool 2 --out none/fashion-mnist-14px.",
        ),
        (
            ["tab-gap", "--preset", "paper"],
            "generated images are not at none/cifar10-generated-1m; import them with: puma data import npz FILE.npz "
            "--like none/cifar10/train --out none/cifar10-generated-1m.",
        ),
    ],
)
def test_bad_input(words: list[str], sentence: str, puma: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = puma("run", *words, "--data", "none")
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_used_is_told_before_the_work(tmp_path: Path, puma: Run) -> None:
    (tmp_path / "afile").write_text("")
    smoke = ["run", "tab-gap", "--preset", "smoke", "--work", str(tmp_path / "work")]
    code, _, err = puma(*smoke, "--out", str(tmp_path / "afile"))
    assert (code, "is a file; give a folder" in err) == (2, True)
    large = tmp_path / "large" / "fashion-mnist-14px"
    for part in ("train", "test"):
        write(large / part, 20, (28, 28, 1))
    code, _, err = puma("run", "tab-gap", "--data", str(tmp_path / "large"), "--work", str(tmp_path / "work"))
    assert (code, "has images of (14, 14, 1)" in err and "(28, 28, 1)" in err) == (2, True)
    for part in ("train", "test"):
        write(tmp_path / "few/cifar10" / part, 20, (32, 32, 3))
    cifar = [
        "--preset",
        "small-real",
        "--dataset",
        "cifar10",
        "--data",
        str(tmp_path / "few"),
        "--work",
        str(tmp_path / "work"),
    ]
    code, _, err = puma("run", "tab-gap", *cifar, "--out", str(tmp_path / "out"))
    assert (code, "of 20 training images none are left beside 11,000 real ones" in err) == (2, True)
    row = ["--rows", "widest net, most images"]
    code, _, err = puma("run", "tab-margin-model", *cifar, *row, "--out", str(tmp_path / "out"))
    assert (code, "preset small-real has no net for that row" in err) == (2, True)
    assert not list((tmp_path / "work").glob("runs/*"))


def test_a_results_file_of_another_version_is_told_before_the_work(tmp_path: Path, puma: Run) -> None:
    (tmp_path / "tab-gap.csv").write_text("row,mean\n")
    code, _, err = puma("run", "tab-gap", "--preset", "smoke", "--out", str(tmp_path), "--work", str(tmp_path / "work"))
    assert (code, "not a results file of this version" in err) == (2, True)
    assert not (tmp_path / "work" / "runs").exists()


def test_list_names_every_experiment_with_its_cost(puma: Run) -> None:
    code, said, _ = puma("list")
    assert code == 0
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    begins = {line.split()[0]: place for place, line in enumerate(lines) if line.startswith("  ")}
    for name in EXPERIMENTS:
        told = " ".join(" ".join(lines[begins[name] : begins[name] + 3]).split())
        assert told.startswith(f"{name} {EXPERIMENTS[name].title} ")
        assert " training" in told or "students" in told
    assert "      1 training: smoke" in said
    assert "15 trainings: smoke 36 s, small 22 min, not at paper" in said


def write_weights(path: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    save_file(build("resnet4b", 10).state_dict(), path)
    return path


@pytest.mark.parametrize("preset", ["cifar10-eps2", "cifar10-eps8", "cifar10-eps2-scratch"])
def test_cifar10_on_a_cpu(preset: str, tmp_path: Path, puma: Run) -> None:
    """Every row of the summary: real images alone, margins by the robust weights, trainings from them or not."""
    data = tmp_path / "data"
    for part in ("train", "test"):
        write(data / "cifar10" / part, 60, (32, 32, 3))
    radius = 8 if "eps8" in preset else 2
    weights = write_weights(data / f"robust_cifar10_eps{radius}.safetensors", radius)
    changes = ["--samples-seen", "64", "--batch-size", "32", "--test-samples", "10"]
    strong = ["--rows", "PUMA 20 %", "--autoattack-samples", "2"]
    words = ["run", "tab-summary", "--preset", preset, *changes, *places(data)]
    assert "autoattack on 1,000" in puma(*words, "--dry-run")[1]
    for more in (["--autoattack-samples", "0"], strong):
        code, said, err = puma(*words, *more)
        assert code == 0, err
    assert "AutoAttack" in said
    lines = read_results_file(tmp_path / "results/tab-summary.csv")
    assert {line.row for line in lines} == SUMMARY
    assert [line.row for line in lines if line.quantity == "autoattack_accuracy"] == ["PUMA 20 %"]
    kept = {line.row: line.value for line in lines if line.quantity == "kept_share"}
    assert [round(60 * share) for share in kept.values()] == [60, 54, 48, 48, 48]
    (margins,) = (tmp_path / "work/margins").glob("*.parquet")
    net = load_model("resnet4b", 10, weights=weights, channels=3)
    batch = Pool.open(data / "cifar10/train").batch(range(16))
    assert torch.allclose(
        read_margins(margins).margin[:16], measure_margins(net, to_unit(batch.images), batch.labels).margin, rtol=0.01
    )
    for run in (tmp_path / "work/runs").glob("[a-z]*"):
        config, inputs = RunFolder(run).read()
        assert config.attack.eps == pytest.approx(radius / 255)
        assert (config.generated_fraction, config.compute.precision) == (0, "bf16")
        assert [link.path for link in inputs.links if link.role == "init"] == (
            [] if "scratch" in preset else [str(weights.resolve())]
        )


def test_cifar10_from_weights_of_ones_own(tmp_path: Path, puma: Run) -> None:
    """Both the first weights and the margin model can be given; then none are looked for in the data folder."""
    data = tmp_path / "data"
    for part in ("train", "test"):
        write(data / "cifar10" / part, 60, (32, 32, 3))
    own = write_weights(tmp_path / "own.safetensors", 5)
    changes = ["--samples-seen", "64", "--batch-size", "32", "--autoattack-samples", "0", "--test-samples", "10"]
    words = ["run", "tab-summary", "--preset", "cifar10-eps2", "--rows", "PUMA 20 %", *changes, *places(data)]
    code, _, err = puma(*words, "--init", str(own))
    assert (code, "the weights of a robust resnet4b are not at" in err) == (2, True)
    code, _, err = puma(*words, "--init", str(own), "--margin-model", "resnet4b", "--margin-weights", str(own))
    assert code == 0, err
    lines = read_results_file(tmp_path / "results/tab-summary.csv")
    assert {"autoattack_accuracy"}.isdisjoint(line.quantity for line in lines)
    assert all("init own.safetensors" in line.origin.changed for line in lines)
    (run,) = (tmp_path / "work/runs").glob("[a-z]*")
    assert [link.path for link in RunFolder(run).read()[1].links if link.role == "init"] == [str(own)]
    code, _, err = puma("run", "fig-pd", "--preset", "cifar10-eps2", *places(data), "--init", str(own),
                        "--margin-model", "resnet4b", "--margin-weights", str(own))  # fmt: skip
    assert (code, "draws curves over training, for which preset cifar10-eps2 holds no images out" in err) == (2, True)


NET = """
import torch

def make_net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6 * 5 * 3, 3))
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a folder with pools of three classes, images of 6 x 5 pixels, and a file with a net for them."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/own.py").write_text(NET)
    for name, count, origin in (("real", 90, 0), ("generated", 60, 1), ("test", 30, 0)):
        rng = np.random.default_rng(count)
        images, labels = rng.integers(256, size=(count, 6, 5, 3)).astype(np.uint8), np.arange(count) % 3
        write_parts({"": PoolPart([(images, labels)], ["a", "b", "c"], count, origin)}, tmp_path / name)
    return tmp_path


def own_words(folder: Path, *names: str) -> list[str]:
    pools = [word for name in names for word in ("--" + ("pool" if name == "real" else name), str(folder / name))]
    small = [
        "--samples-seen",
        "256",
        "--batch-size",
        "32",
        "--eps",
        "4/255",
        "--model",
        f"{folder}/net/own.py:make_net",
    ]
    return ["run", *pools, *small, "--work", str(folder / "work"), "--out", str(folder / "out")]


def test_a_table_on_images_and_a_net_of_ones_own(own: Path, puma: Run) -> None:
    code, said, err = puma(*own_words(own, "real", "generated", "test"), "tab-summary")
    assert code == 0, err
    lines = read_results_file(own / "out/tab-summary.csv")
    assert {line.paper for line in lines} == {None}  # it says nothing about other images
    assert "87.87" not in said
    fingerprint = Pool.open(own / "real").fingerprint
    (origin,) = {line.origin for line in lines}
    assert origin.dataset == f"real-{fingerprint[:8]}"
    assert "own.py:make_net" in origin.changed
    assert {line.row for line in lines} == SUMMARY
    (kept,) = [line.value for line in lines if (line.row, line.quantity) == ("PUMA 20 %", "kept_share")]
    assert kept == pytest.approx(0.8)
    (folder,) = (own / "work/experiments").iterdir()
    record = read_record(folder / "experiment.json")
    assert [path.resolve() for path in record.pools] == [own / "real", own / "generated"]
    assert record.eps == pytest.approx(4 / 255)
    code, _, err = puma("report", str(folder), "--out", str(own / "report.html"))
    assert code == 0, err


def test_real_images_of_ones_own_are_enough_and_rows_of_other_nets_are_left_out(own: Path, puma: Run) -> None:
    code, _, err = puma(*own_words(own, "real", "test"), "tab-margin-model", "--rows", "same net, same images")
    assert code == 0, err
    (run, *_) = (own / "work/runs").glob("puma-*")
    assert RunFolder(run).read()[0].generated_fraction == 0
    code, said, _ = puma(*own_words(own, "real", "test"), "tab-margin-model", "--dry-run")
    assert (code, "left out     wide net, same images: there is one net" in said) == (0, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--pool", "real"], "give both --pool and --test"),
        (["--test", "test"], "give both --pool and --test"),
        (["--pool", "real", "--test", "test", "--dataset", "cifar10"], "give --dataset or --pool, not both"),
        (
            ["--pool", "real", "--test", "other"],
            "--test has 10 classes of images of (8, 8, 1), --pool has 3 of",
        ),
        (["--pool", "real", "--test", "test", "--model", "gone.py:net"], "there is no file"),
    ],
)
def test_bad_images_of_ones_own(
    words: list[str], sentence: str, own: Path, puma: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own)
    write(own / "other", 20, (8, 8, 1))
    code, _, err = puma("run", "tab-summary", *words)
    assert (code, sentence in err) == (2, True), err


def test_margins_by_a_weights_file_of_ones_own(own: Path, puma: Run) -> None:
    weights = own / "net.safetensors"
    generator = torch.Generator().manual_seed(0)
    save_file({"1.weight": torch.randn(3, 90, generator=generator), "1.bias": torch.zeros(3)}, weights)
    words = [*own_words(own, "real", "test"), "tab-summary", "--seeds", "2"]
    outside = ["--margin-model", f"{own}/net/own.py:make_net", "--margin-weights", str(weights)]
    code, _, err = puma(*words, *outside)
    assert code == 0, err
    (margins,) = (own / "work/margins").glob("*.parquet")  # one for both seeds
    net = load_model(f"{own}/net/own.py:make_net", 3, weights=weights)
    batch = Pool.open(own / "real").batch(range(16))
    again = measure_margins(net, to_unit(batch.images), batch.labels).margin
    assert torch.allclose(read_margins(margins).margin[:16], again, rtol=0.01)
    lines = read_results_file(own / "out/tab-summary.csv")
    assert all("margin_model" in line.origin.changed for line in lines)
    assert {line.row for line in lines} == SUMMARY
    assert len(list((own / "work/runs").glob("[a-z]*"))) == 2 * len(SUMMARY)
    code, _, err = puma(*words, "--margin-weights", str(weights))
    assert (code, "--margin-weights belong to a --margin-model" in err) == (2, True)
