"""The rules as data: one table a kind of cause, read by `rules.py` of the folder above."""
