"""What several rooms' tests share: bounded waits, a private PostgreSQL, a real server, a faulty network."""
