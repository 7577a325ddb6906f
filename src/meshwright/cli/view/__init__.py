"""What several commands show: a trace, a step, a training, advice."""
