"""From measured steps to more devices and other links."""
