"""Programs that run in another project's environment, never in ours: what they import is not to be found here."""
