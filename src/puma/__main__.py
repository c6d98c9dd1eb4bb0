"""Lets ``python -m puma`` (and so ``torchrun -m puma``) do what ``puma`` does."""

from puma.cli import main

if __name__ == "__main__":
    main()
