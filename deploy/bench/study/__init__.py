"""Studies of the scheduler alone: its real core over long loads in virtual time, a cost model for the device."""
