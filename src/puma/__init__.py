"""PUMA: margin-based data pruning and per-sample attack strength for robust image classifiers."""
