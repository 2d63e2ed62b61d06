"""What suites are measured, recorded and reported with."""
