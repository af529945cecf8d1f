"""Dashboards, rules and the collector of a deployment that is watched."""
