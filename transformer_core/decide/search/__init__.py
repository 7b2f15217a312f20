"""The search for the best combination of techniques: it measures, certifies and recommends."""
