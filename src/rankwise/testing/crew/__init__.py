"""What runs tests: the processes that stand behind the ranks."""
