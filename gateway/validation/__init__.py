"""Checks every field of what clients send, and turns it into structs that hold only what is valid.

Knows the public messages and the limits in force; neither sockets nor the scheduler. No error quotes a value of a text
field.
"""
