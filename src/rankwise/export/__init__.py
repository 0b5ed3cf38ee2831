"""Jobs written for others who run them: Kubernetes, its operators and Azure ML. Plain data."""
