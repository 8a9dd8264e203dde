"""What happened in a run, as facts: who was trained by whom, called how, and what was kept."""
