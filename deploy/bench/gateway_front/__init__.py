"""What a gateway process costs: a real one between a stand-in for the scheduler and clients in processes of their own.

Nothing of the gateway is imported: it is started and spoken to as anyone would.
"""
