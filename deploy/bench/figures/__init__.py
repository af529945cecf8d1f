"""Turns records into figures: percentiles with intervals, goodput, throughput. Pure; knows no server and no clock."""
