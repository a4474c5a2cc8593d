"""The report as a page: one HTML file that needs no network."""
