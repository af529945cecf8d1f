"""Orders of the queue: each policy is one file and says who boards next and who gives way."""
