"""What computing, sending and keeping costs."""
