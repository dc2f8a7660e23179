"""``outlast doctor``: what a server would find here, and what to do about what it lacks."""
