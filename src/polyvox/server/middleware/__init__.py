"""Authentication, concurrency limits and connection timeouts."""
