"""Messages between ranks: collectives, their traffic, and ranks that are lost."""
