"""What is asked of a server: prompts and output lengths, the same for the same seed. Says nothing about when."""
