"""How work is divided over devices: one module per strategy."""
