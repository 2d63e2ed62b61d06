"""Code that all suites share: it measures, records results and writes the tables of the README files."""
