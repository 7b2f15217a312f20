"""Any training script, unedited: which changes make it faster, and do they train the same model?"""
