"""Faults on purpose: damaged files, killed processes, full disks, hosts cut off. ``make fuzz`` and ``make faults``."""
