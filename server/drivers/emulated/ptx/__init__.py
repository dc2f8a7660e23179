"""PTX text as a tree: tokens, declarations, statements."""
