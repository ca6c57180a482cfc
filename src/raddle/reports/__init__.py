"""What people see of a result: tables for a terminal, pages for a browser."""
