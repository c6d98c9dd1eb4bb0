import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import MakePool, Run
from puma.cli import main
from puma.errors import PumaError
from puma.files import LINKS_KEY, Link, link_to_file, write_links
from puma.margins import measure_pool, read_margins
from puma.models import build
from puma.planning import Plan
from puma.pools import Pool
from puma.pools.writer import PoolPart, new_folder, write_pool
from puma.trace import TracedItem, format_trace, trace_file


@dataclass(frozen=True)
class Chain:
    """Pool, run, margins of its model, plan, run with the plan, evaluation."""

    folder: Path

    def __getitem__(self, name: str) -> Path:
        return self.folder / name


EVALUATION = "second/evaluation-test"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    made = Chain(tmp_path_factory.mktemp("chain"))
    short = ["--samples-seen", "256", "--attack.steps", "1", "--model", "small-8px"]
    few = ["--max-samples", "4", "--masking-samples", "0", "--curve-samples", "0"]
    train, margins, plan = (str(made[name]) for name in ("digits/train", "margins.parquet", "plan.parquet"))
    for words in (
        ["data", "import", "digits", "--out", str(made["digits"])],
        ["train", train, "--out", str(made["first"]), *short],
        ["margins", train, "--model", str(made["first"]), "--out", margins, "--method", "fast-ce"],
        ["plan", train, "--margins", margins, "--prune-easy", "0.2", "--eps", "0.1", "--drop-failed", "--out", plan],
        ["train", train, "--plan", plan, "--out", str(made["second"]), *short],
        ["evaluate", str(made["second"]), str(made["digits/test"]), "--attacks", "pgd20", *few],
    ):
        main(words)
    return made


@contextmanager
def put_back(path: Path) -> Iterator[Path]:
    """Let a test break or take away a file or folder that others need too."""
    kept = path.with_name(f".kept-{path.name}")
    copy = shutil.copytree if path.is_dir() else shutil.copy2
    copy(path, kept)
    try:
        yield path
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        kept.rename(path)


def change_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def list_broken(item: TracedItem) -> dict[str, str]:
    return {f"{part.role} {Path(part.path).name}": part.state for part in item.list_items() if part.is_broken}


def test_the_whole_chain_holds(chain: Chain, puma: Run) -> None:
    code, said, err = puma("trace", str(chain[EVALUATION]))
    lines = said.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == f"evaluation  {chain[EVALUATION]}"
    assert "no link is broken" in lines[-1]
    told = [(len(line) - len(line.lstrip()), line.split()[0], line.split()[-1]) for line in lines[1:-1]]
    assert (2, "model", "ok") in told
    assert (4, "plan", "ok") in told
    assert (6, "margins", "ok") in told
    assert (8, "model", "ok") in told
    assert (10, "pool", "ok") in told
    assert (2, "weights", "ok") in told
    assert {state for *_, state in told} == {"ok"}
    assert str(chain["digits/train"]) in said
    fingerprint = json.loads((chain["digits/train"] / "pool.json").read_text())["fingerprint"]
    assert f"  {fingerprint[:12]}  ok" in said


@pytest.mark.parametrize("name", [f"{EVALUATION}/metrics.json", "second", "plan.parquet", "margins.parquet", "first"])
def test_everything_in_the_chain_can_be_asked_for(chain: Chain, name: str) -> None:
    item = trace_file(chain[name])
    assert list_broken(item) == {}
    assert item.made_from
    assert "ok" in format_trace(item)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("digits/train/images.npy", {"pool train"}),
        ("digits/test/labels.npy", {"pool test"}),
        ("first/model.safetensors", {"model first"}),
        ("margins.parquet", {"margins margins.parquet"}),
        ("plan.parquet", {"plan plan.parquet"}),
        ("second/model.safetensors", {"model second", "weights model.safetensors"}),
    ],
)
def test_a_changed_byte_breaks_its_link(chain: Chain, puma: Run, name: str, broken: set[str]) -> None:
    with put_back(chain[name]) as path:
        change_byte(path)
        found = list_broken(trace_file(chain[EVALUATION]))
        assert found == dict.fromkeys(broken, "changed")
        code, said, _ = puma("trace", str(chain[EVALUATION]))
        last = said.splitlines()[-1]
        assert code == 1
        assert last.startswith("broken: ")
        assert "CHANGED since" in last
        assert all(words.split()[1] in last for words in broken)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("digits/train", {"pool train"}),
        ("first", {"model first"}),
        ("margins.parquet", {"margins margins.parquet"}),
        ("plan.parquet", {"plan plan.parquet"}),
        ("second/model.safetensors", {"model second", "weights model.safetensors"}),
    ],
)
def test_what_is_gone_is_missing(chain: Chain, puma: Run, name: str, broken: set[str]) -> None:
    with put_back(chain[name]) as path:
        hidden = path.with_name(f".gone-{path.name}")
        path.rename(hidden)
        try:
            found = list_broken(trace_file(chain[EVALUATION]))
            code, said, _ = puma("trace", str(chain[EVALUATION]))
        finally:
            hidden.rename(path)
    assert found == dict.fromkeys(broken, "missing")
    assert code == 1
    assert said.splitlines()[-1].startswith("broken: ")
    assert "MISSING" in said.splitlines()[-1]


def test_a_moved_folder_is_found_again(chain: Chain, tmp_path: Path, puma: Run) -> None:
    with put_back(chain["first"]) as run:
        moved = chain.folder.parent / "first"  # one level up
        run.rename(moved)
        try:
            item = trace_file(chain["margins.parquet"])
            assert [(part.role, part.state, part.path) for part in item.made_from][1] == ("model", "moved", str(moved))
            code, said, _ = puma("trace", str(chain["margins.parquet"]))
        finally:
            moved.rename(run)
    assert code == 0
    assert f"moved to {moved}" in said


def test_a_whole_tree_that_moved_is_found_again(chain: Chain) -> None:
    place = chain.folder.with_name("elsewhere")
    chain.folder.rename(place)
    try:
        item = trace_file(place / EVALUATION)
    finally:
        place.rename(chain.folder)
    assert list_broken(item) == {}
    assert {part.state for part in item.list_items()} == {"given", "moved"}
    assert all(str(place) in part.path for part in item.list_items())


def test_a_run_that_was_renamed_is_found_from_its_evaluation(chain: Chain) -> None:
    renamed = chain["renamed"]
    chain["second"].rename(renamed)
    try:
        item = trace_file(renamed / "evaluation-test")
    finally:
        renamed.rename(chain["second"])
    assert [(part.state, part.path) for part in item.made_from if part.role == "model"] == [("moved", str(renamed))]
    assert list_broken(item) == {}


def test_old_files_do_not_tell(chain: Chain, tmp_path: Path, puma: Run) -> None:
    margins, plan = read_margins(chain["margins.parquet"]), Plan.open(chain["plan.parquet"])
    told = {name: value for name, value in margins.made_from.items() if name != LINKS_KEY}
    type(margins)(**{**vars(margins), "made_from": told}).save(tmp_path / "margins.parquet")
    Plan(plan.sample_id, plan.keep, plan.strength, plan.pool_fingerprint).save(tmp_path / "plan.parquet")
    described = json.loads((chain[EVALUATION] / "metrics.json").read_text())
    (tmp_path / "metrics.json").write_text(
        json.dumps({key: described[key] for key in described if key not in (LINKS_KEY, "sha256")})
    )
    for name in ("margins.parquet", "plan.parquet", "metrics.json"):
        code, said, _ = puma("trace", str(tmp_path / name))
        assert code == 0
        assert said.splitlines()[1].split() == ["made", "from", "(?)", "unknown"]
    config = json.loads((chain["second"] / "config.json").read_text())
    del config[LINKS_KEY], config["sha256"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    assert [(part.kind, part.state) for part in trace_file(tmp_path / "run").made_from] == [
        ("pool", "ok"),
        ("plan", "ok"),
    ]


def test_a_damaged_evaluation_is_called_damaged(tmp_path: Path, puma: Run) -> None:
    (tmp_path / "metrics.json").write_text('{"results": ')
    code, _, said = puma("trace", str(tmp_path))
    assert code == 2
    assert "metrics.json is damaged" in said


def test_pools_and_scores_tell_their_origin(chain: Chain, tmp_path: Path, puma: Run) -> None:
    train, run = str(chain["digits/train"]), str(tmp_path / "run")
    short = ["--samples-seen", "1433", "--attack.steps", "1", "--model", "small-8px", "--record-outcomes"]
    el2n = ["--runs", str(tmp_path / "nets"), "--nets", "2", "--samples-seen", "256"]
    guided = ["--solver.steps", "2", "--guide", run, "--band", "0", "1", "--eps", "0.1"]
    for words in (
        ["data", "distort", train, "--out", str(tmp_path / "distorted"), "--count", "20"],
        ["train", train, "--out", run, *short],
        ["scores", "cd", run, "--out", str(tmp_path / "cd.parquet")],
        ["scores", "el2n", train, "--out", str(tmp_path / "el2n.parquet"), *el2n],
        ["train", train, "--out", str(tmp_path / "continued"), "--init", run, *short[:-1]],
        ["data", "filter", train, "--out", str(tmp_path / "filtered"), "--agree-with", run],
        ["generate", "train", train, "--out", str(tmp_path / "maker"), "--samples-seen", "64", "--net.width", "8"],
        ["generate", "sample", str(tmp_path / "maker"), "--out", str(tmp_path / "made"), "--count", "40", *guided],
    ):
        code, _, said = puma(*words)
        assert code == 0, said
    opened = Pool.open(train)
    opened.subset(opened.labels < 5).save(tmp_path / "part")
    for name, roles in {
        "distorted": ["images"],
        "part": ["images"],
        "cd.parquet": ["pool", "run"],
        "el2n.parquet": ["pool", "net", "net"],
        "continued": ["pool", "init"],
        "filtered": ["images", "agree with"],
        "maker": ["images"],
        "made": ["generator", "guide"],
    }.items():
        item = trace_file(tmp_path / name)
        assert [(part.role, part.state) for part in item.made_from] == [(role, "ok") for role in roles]
    change_byte(tmp_path / "run/model.safetensors")
    for name in ("cd.parquet", "continued"):
        assert list_broken(trace_file(tmp_path / name)) in ({"run run": "changed"}, {"init run": "changed"})
    assert list_broken(trace_file(tmp_path / "filtered")) == {"agree with run": "changed"}
    assert list_broken(trace_file(tmp_path / "made")) == {"guide run": "changed"}
    change_byte(tmp_path / "maker/model.safetensors")
    assert list_broken(trace_file(tmp_path / "made"))["generator maker"] == "changed"


def write_linked_pool(folder: Path, *links: Link) -> Path:
    pixels, labels = torch.zeros(4, 2, 2, 1, dtype=torch.uint8).numpy(), torch.tensor([0, 1, 0, 1]).numpy()
    part = PoolPart([(pixels, labels)], ["a", "b"], 4, 1, description={LINKS_KEY: write_links(links)})
    with new_folder(folder, force=True) as made:
        write_pool(made, part)
    return folder


def test_cycles_end(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_linked_pool(one)
    fingerprint = json.loads((one / "pool.json").read_text())["fingerprint"]
    write_linked_pool(one, Link("images", "pool", fingerprint, str(two)))
    write_linked_pool(two, Link("images", "pool", fingerprint, str(one)), Link("images", "pool", fingerprint, str(two)))
    item = trace_file(one)
    assert [(Path(part.path).name, part.state) for part in item.list_items()] == [
        ("one", "given"),
        ("two", "ok"),
        ("one", "ok"),
        ("two", "ok"),
    ]


def test_several_pools_are_one_link(make_pool: MakePool, tmp_path: Path) -> None:
    one, two = make_pool("one", shape=(8, 8, 1)), make_pool("two", shape=(8, 8, 1), seed=1)
    model = build("small-8px", 4, channels=1).eval()
    measure_pool(model, one + two, tmp_path / "m.parquet", method="fast-ce", model_path="nets:make")
    pools, net = trace_file(tmp_path / "m.parquet").made_from
    assert (pools.state, pools.path) == ("ok", f"{tmp_path / 'one'} + {tmp_path / 'two'}")
    assert (net.state, net.reason) == ("not checked", "it is code of the user's")
    shutil.rmtree(tmp_path / "two")
    assert trace_file(tmp_path / "m.parquet").made_from[0].state == "missing"


def test_weights_of_a_built_in_net_are_checked_without_its_name(make_pool: MakePool, tmp_path: Path) -> None:
    pool, weights = make_pool(shape=(8, 8, 1)), tmp_path / "net.safetensors"
    model = build("small-8px", 4, channels=1).eval()
    save_file(model.state_dict(), weights)
    measure_pool(model, pool, tmp_path / "m.parquet", method="fast-ce", model_path=str(weights))
    assert [part.state for part in trace_file(tmp_path / "m.parquet").made_from] == ["ok", "ok"]
    tensors = load_file(weights)
    save_file({name: value + (value.ndim == 1) * 1e-3 for name, value in tensors.items()}, weights)
    assert trace_file(tmp_path / "m.parquet").made_from[1].state == "changed"
    save_file({"own": torch.zeros(3)}, weights)
    assert trace_file(tmp_path / "m.parquet").made_from[1].state == "not checked"


def test_a_users_module_is_never_imported(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain: Chain
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    config = json.loads((chain["first"] / "config.json").read_text())
    config["config"]["model"] = "evil:make"
    del config["sha256"]
    shutil.copytree(chain["first"], tmp_path / "run")
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    pool = make_pool()
    links = [Link("images", "pool", pool.fingerprint, str(tmp_path / "pool"))]
    links += [Link("model", "model", "ab" * 32, path) for path in (str(tmp_path / "run"), "evil:make", "evil.py:make")]
    item = trace_file(write_linked_pool(tmp_path / "made", *links))
    assert [part.reason for part in item.made_from[1:]] == ["it is code of the user's"] * 3
    assert "not checked: it is code of the user's" in format_trace(item)


def test_a_link_without_a_place_is_found_where_another_tells_it(chain: Chain, tmp_path: Path) -> None:
    told = trace_file(chain["margins.parquet"]).made_from[1]
    file = link_to_file("margins", "margins", chain["margins.parquet"])
    links = (file, Link("margin model", "model", told.hash), Link("net", "model", "ab" * 32), Link("old", "plan", ""))
    item = trace_file(write_linked_pool(tmp_path / "made", *links))
    assert [part.state for part in item.made_from] == ["ok", "ok", "not checked", "unknown"]
    assert item.made_from[1].path == str(chain["first"])


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    made = write_linked_pool(tmp_path / "made", Link("a\x1b[2J", "plan", "ab" * 32, "x\n" + "y" * 5000 + "\0"))
    text = format_trace(trace_file(made))
    assert "\x1b" not in text
    assert len(text.splitlines()) == 3


def test_bad_input(tmp_path: Path, puma: Run) -> None:
    (tmp_path / "text.parquet").write_text("no table")
    (tmp_path / "text.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    for name, words in {
        "absent": "no file or folder at",
        "": "holds no pool, run, generator or evaluation",
        "text.parquet": "expected margins, scores or a plan",
        "text.json": "damaged or not of puma evaluate",
        "pipe": "no file or folder at",
    }.items():
        code, said, err = puma("trace", str(tmp_path / name))
        assert (code, said) == (2, "")
        assert words in err
        assert err.count("\n") == 1
    with pytest.raises(PumaError):
        trace_file(tmp_path / "absent")
    assert puma("trace")[0] == 2
