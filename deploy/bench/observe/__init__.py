"""What stands beside the client's own clock: the server's account, the machine, memory. Reads; changes nothing."""
