"""Steps of pipelines: small programs that are run as any other command."""
