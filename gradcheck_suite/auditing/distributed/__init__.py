"""Many processes that train together: one report for all, and what should be equal and is not."""
