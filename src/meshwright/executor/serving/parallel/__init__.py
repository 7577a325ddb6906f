"""A model over several processes: tensor-parallel ranks share every layer, pipeline stages have some of the layers each."""
