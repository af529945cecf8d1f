"""What the commands do once their arguments are read: one module a command, with `run(arguments) -> exit code`."""
