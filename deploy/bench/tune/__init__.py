"""Finds the settings that give the most throughput within latency objectives, and keeps the evidence."""
