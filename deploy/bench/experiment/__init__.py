"""The fair experiment: variants that differ in one variable, the same requests, alternating order, a verdict."""
