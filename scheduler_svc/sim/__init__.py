"""Devices and loads that are not real, to drive the real core: for tests, replay and simulation.

Imports `scheduler_svc.core`, `chairlift.ipc`, msgspec and the standard library.
"""
