"""Other pytest plugins that need to know that a test runs on several ranks, one module each."""
