"""What is known of launchers, frameworks, models and data sets, as data files; and what reads them."""
