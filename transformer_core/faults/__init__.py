"""What is done to the project on purpose, to see that it is noticed: results/faults/report.json."""
