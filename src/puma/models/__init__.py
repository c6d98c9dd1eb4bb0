"""Image classifiers that take pixels in [0, 1] and give logits."""

from puma.models.architectures import ARCHITECTURES, build, count_parameters, name_architecture
from puma.models.ema import EmaConfig, copy_for_ema, update_ema
from puma.models.prepare import (
    BatchNormMode,
    fingerprint_model,
    flush_subnormals,
    fold_batchnorm,
    frozen,
    gives_same_logits,
    prepare_model,
    start_threads,
)
from puma.models.source import call_model_function, load_named_model, normalize_model
from puma.models.trust import check_code, find_code, remember_code, trust_code, trust_code_from_now_on
from puma.models.weights import load_weights, read_state_dict, read_tensors, save_tensors

__all__ = [
    "ARCHITECTURES",
    "BatchNormMode",
    "EmaConfig",
    "build",
    "call_model_function",
    "check_code",
    "copy_for_ema",
    "count_parameters",
    "find_code",
    "fingerprint_model",
    "flush_subnormals",
    "fold_batchnorm",
    "frozen",
    "gives_same_logits",
    "load_named_model",
    "load_weights",
    "name_architecture",
    "normalize_model",
    "prepare_model",
    "read_state_dict",
    "read_tensors",
    "remember_code",
    "save_tensors",
    "start_threads",
    "trust_code",
    "trust_code_from_now_on",
    "update_ema",
]
