"""Lets OpenMP's threads wait passively, as the worker does: tests run beside each other."""

from services.worker.engine.compute_environment import set_compute_environment

set_compute_environment()
