"""The ground under all rooms: files written whole, records, progress, commands, sources."""
