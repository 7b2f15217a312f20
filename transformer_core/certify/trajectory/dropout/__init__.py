"""What dropout does: known inputs tell masks, draws tell means and spreads."""
