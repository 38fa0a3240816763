"""The results page: which runs it needs, what they came to, and the page that is written of them (`make results`)."""
