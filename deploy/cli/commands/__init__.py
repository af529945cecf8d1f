"""What people type after `chairlift`: one module (or package) a command."""
