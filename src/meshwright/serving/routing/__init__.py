"""Which of several replicas gets a request: the same router decides for a simulated fleet and for a front of real servers."""
