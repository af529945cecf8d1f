"""The bench on a simulated server: real load generator, real scheduler core, modelled device, virtual time."""
