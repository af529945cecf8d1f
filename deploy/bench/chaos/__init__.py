"""`chairlift chaos`: a loaded stack, a seeded schedule of faults, and a comparison with the undisturbed run."""
