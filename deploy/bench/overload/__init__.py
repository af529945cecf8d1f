"""`chairlift bench overload`: what a replica does with more requests than it can serve."""
