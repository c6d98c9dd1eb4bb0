"""Load a checkpoint whose weights have other names than the net has: RobustBench, torchvision, old code of one's own.

    python examples/checkpoint_by_name_map.py theirs.pt resnet18 --out mine.safetensors

The rules are regular expressions; a name that becomes empty is left out. Names and shapes can fit while the nets still
compute different things (another activation, padding at one side only, no normalisation): evaluate before you measure.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import puma
from puma.models import build

# from ResNet-18 as in RobustBench and torchvision to the names of puma's
RULES = {
    r"^(module\.|model\.|net\.)+": "",  # wrappers
    r"^(mu|sigma|mean|std)$": "",  # normalisation is given as numbers, see --mean and --std
    r"\.downsample\.": ".shortcut.",
    r"^fc\.": "linear.",
}


def rename_weights(weights: Mapping[str, Tensor], rules: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the weights by the names that the rules make of theirs."""
    renamed = {}
    for name, value in weights.items():
        for pattern, replacement in rules.items():
            name = re.sub(pattern, replacement, name)
        if name:
            renamed[name] = value
    return renamed


def load_renamed(path: Path, model: nn.Module, out: Path, rules: Mapping[str, str] = RULES) -> nn.Module:
    """Write the weights in ``path`` to ``out`` by the model's names, and load them; what does not fit is told."""
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    theirs = next((theirs[key] for key in ("state_dict", "model_state_dict", "net") if key in theirs), theirs)
    save_file({name: value.contiguous() for name, value in rename_weights(theirs, rules).items()}, out)
    return puma.load_model(model, weights=out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("architecture", help="one of: puma list")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("renamed.safetensors"))
    asked = parser.parse_args()
    load_renamed(asked.checkpoint, build(asked.architecture, asked.classes), asked.out)
    print(f"puma evaluate {asked.architecture} POOL --weights {asked.out} --eps 8/255")
