"""Time to quality: two trainings in turns, until both translate as well as asked."""
