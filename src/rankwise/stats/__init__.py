"""Is it really slower? What samples say, and how sure that is."""
