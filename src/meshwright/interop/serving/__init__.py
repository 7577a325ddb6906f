"""Plans that serve, in the words of servers (vLLM, SGLang, our own) and of what runs servers (Kubernetes, Ray Serve)."""
