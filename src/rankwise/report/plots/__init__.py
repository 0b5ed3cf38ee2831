"""Small plots as SVG: pure functions of data, the same text for the same data."""
