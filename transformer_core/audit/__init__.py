"""Does a training do what it says? Relations of a training to itself, tested without a reference."""
