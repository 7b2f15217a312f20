"""What the devices and links of this machine reach."""
