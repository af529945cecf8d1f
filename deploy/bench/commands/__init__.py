"""What people type: one module a command, each with `add_arguments(parser)` and `run(arguments) -> exit code`."""
