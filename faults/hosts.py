"""Two hosts: two network namespaces of this machine with a cable between them, and torchrun on both."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faults.scenarios import FaultOutcome

_HOSTS = (f"puma-{os.getpid()}-a", f"puma-{os.getpid()}-b")  # of this process: others may have their own
_ADDRESSES = ("10.117.0.1", "10.117.0.2")
_TRAIN = "--samples-seen 1600 --batch-size 32 --checkpoint-every 320 --log-every 5 --attack.steps 3 --attack.eps 0.1"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def connect_hosts() -> Iterator[str]:
    """Make the two namespaces; yields why that was not possible, or nothing."""
    made: list[str] = []
    try:
        try:
            for host in _HOSTS:
                _ip("netns", "add", host)
                made.append(host)
            cable = ("link", "add", "puma-a", "netns", _HOSTS[0], "type", "veth", "peer", "name", "puma-b")
            _ip(*cable, "netns", _HOSTS[1])
            for host, address, end in zip(_HOSTS, _ADDRESSES, ("puma-a", "puma-b"), strict=True):
                _ip("-n", host, "addr", "add", f"{address}/24", "dev", end)
                _ip("-n", host, "link", "set", end, "up")
                _ip("-n", host, "link", "set", "lo", "up")
        except FileNotFoundError:
            yield "the program ip (iproute2) is not installed"
            return
        except subprocess.CalledProcessError as error:
            yield f"network namespaces cannot be made here: {error.stderr.decode(errors='replace').strip()}"
            return
        yield ""
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)


def start_host(index: int, words: str, port: int, log: Path, *, restarts: int = 0) -> subprocess.Popen[bytes]:
    """Start torchrun on one of the two hosts, one process each."""
    launch = [
        "ip", "netns", "exec", _HOSTS[index], sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
        "--nproc-per-node", "1", "--node-rank", str(index), "--master-addr", _ADDRESSES[0], "--master-port", str(port),
        "--max-restarts", str(restarts), "-m", "puma", *words.split(),
    ]  # fmt: skip
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": ("puma-a", "puma-b")[index], "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        return subprocess.Popen(launch, stdout=file, stderr=file, env=environment, start_new_session=True)


def start_ranks(words: str, log: Path, *, restarts: int = 0) -> subprocess.Popen[bytes]:
    """Start torchrun with two processes on this host."""
    launch = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts",
        str(restarts), "-m", "puma", *words.split(),
    ]  # fmt: skip
    with log.open("ab") as file:
        return subprocess.Popen(
            launch, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True
        )


def wait_all(processes: list[subprocess.Popen[bytes]], seconds: float = 400.0) -> list[int]:
    """Wait for processes; those that hang are killed."""
    end = time.monotonic() + seconds
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(max(1.0, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            stop(process)
            codes.append(-1000)
    return codes


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for_file(process: subprocess.Popen[bytes], path: Path, pattern: str, seconds: float = 120.0) -> bool:
    """Wait until a process has made a file that fits the pattern, or has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not list(path.glob(pattern)):
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            break
    return bool(list(path.glob(pattern)))


def hash_of(path: Path) -> str:
    """Return the hash of a file, or that it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def disturb_ranks(base: Path, place: Path) -> Iterator[FaultOutcome]:
    """Kill one of two processes of a training: torchrun starts them again, and the model is the same."""
    log = place / "ranks.log"
    words = f"train {base}/digits/train {_TRAIN} --out {place}/"
    codes = wait_all([start_ranks(words + "two", log)])
    wrong = "" if codes == [0] else f"exit {codes}: {log.read_text()[-500:]}"
    killed = start_ranks(words + "killed", log, restarts=2)
    if not wrong and wait_for_file(killed, place / "killed", "checkpoint/step-*.safetensors"):
        # torchrun is no session leader of its workers: they are its children
        children = subprocess.run(["pgrep", "-P", str(killed.pid)], capture_output=True, text=True, check=False)
        for child in children.stdout.split()[-1:]:
            os.kill(int(child), signal.SIGKILL)
    codes = wait_all([killed])
    wrong = wrong or ("" if codes == [0] else f"exit {codes} after a rank was killed: {log.read_text()[-600:]}")
    same = hash_of(place / "two/model.safetensors") == hash_of(place / "killed/model.safetensors")
    yield FaultOutcome("a rank killed", "train", "SIGKILL of one of two", wrong or ("" if same else "other bytes"))


def use_two_hosts(base: Path, place: Path) -> Iterator[FaultOutcome]:
    """Train and measure on two hosts, cut one off in mid-run, and take the run up again: same bytes as on one."""
    log, margins = place / "hosts.log", f"margins {base}/digits/train --model {base}/run --part-size 128 --out {place}/"
    train = f"train {base}/digits/train {_TRAIN} --out {place}/"
    with connect_hosts() as reason:
        if reason:
            yield FaultOutcome("two hosts", "train", "", reason, skipped=True)
            return
        if not (place / "two/model.safetensors").is_file():
            wait_all([start_ranks(train + "two", log)])
        wait_all([start_ranks(margins + "m-two.parquet", log)])
        for name, words, results in (
            ("train", train + "hosts", ("two/model.safetensors", "hosts/model.safetensors")),
            ("margins", margins + "m-hosts.parquet", ("m-two.parquet", "m-hosts.parquet")),
        ):
            codes = wait_all([start_host(index, words, 29611, log) for index in range(2)])
            one, two = (hash_of(place / result) for result in results)
            wrong = "" if codes == [0, 0] else f"exits {codes}: {log.read_text()[-800:]}"
            wrong = wrong or ("" if one == two != "missing" else "other bytes than two ranks of one host")
            yield FaultOutcome("two hosts", name, "the same bits as two ranks of one host", wrong)
        yield _cut_off(train + "cut", place, log)


def _cut_off(words: str, place: Path, log: Path) -> FaultOutcome:
    hosts = [start_host(index, words, 29613, log) for index in range(2)]
    begun = wait_for_file(hosts[0], place / "cut", "checkpoint/step-*.safetensors")
    _ip("-n", _HOSTS[1], "link", "set", "puma-b", "down")
    with suppress(subprocess.TimeoutExpired):  # no time-out of either side may come to its help
        hosts[0].wait(2.0)
    done = (place / "cut/model.safetensors").is_file()
    for host in hosts:  # a cut cable shows only after long timeouts: an operator stops both
        stop(host)
    _ip("-n", _HOSTS[1], "link", "set", "puma-b", "up")
    resume = f"train --resume {place}/cut"
    codes = wait_all([start_host(index, resume, 29615, log) for index in range(2)])
    same = hash_of(place / "two/model.safetensors") == hash_of(place / "cut/model.safetensors")
    wrong = "" if begun else "no checkpoint before the cut"
    wrong = wrong or ("" if codes == [0, 0] else f"exits {codes} after the restart: {log.read_text()[-800:]}")
    wrong = wrong or ("" if same else "other bytes than undisturbed")
    when = "after its end" if done else "in mid-run"
    return FaultOutcome("two hosts", "train", f"one host cut off {when}, then restarted", wrong)
