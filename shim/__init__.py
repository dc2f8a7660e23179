"""Client surfaces: what a program without a GPU imports."""
