"""Files made by the scripts in ``tools/``; never edited by hand."""
