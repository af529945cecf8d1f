"""What batching gives on a machine, measured part by part and told in one report."""
