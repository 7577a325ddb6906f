"""Systems that cut a model into stages and fill them with microbatches."""
