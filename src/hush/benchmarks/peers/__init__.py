"""Simulators that are timed beside each other, a program each, which `hush.benchmarks.simulation` starts."""
