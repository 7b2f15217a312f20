"""What a short run should have computed, by code that shares nothing with what was trained."""
